"""The server begins and ends profiles: one at a time, bounded in number, followed until they are written."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from in_loop import in_loop

from vllm_obs.engine.errors import EngineDeadError, RequestError, RequestFailedError
from vllm_obs.engine.profile_order import OPERATORS, SAMPLES
from vllm_obs.server import profiles as profiles_module
from vllm_obs.server.errors import ApiError
from vllm_obs.server.profile_config import ProfilerConfig
from vllm_obs.server.profile_files import NUM_KEPT, make_directory
from vllm_obs.server.profiles import ProfileRequest, ServerProfiles, read_request
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProfileEnded


class Core:
    """The engine's side: a profile is under way until it is told to be over."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.is_profiling = False
        self.failure: Exception | None = None

    async def call_utility(self, method: str, *args: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        if method != "is_profiling":
            self.calls.append((method, args))
        if method == "start_profile":
            self.is_profiling = True
        return self.is_profiling


class Stage:
    """A server's profiles over such an engine."""

    def __init__(self, run_dir: Path, config: ProfilerConfig | None = None) -> None:
        self.core = Core()
        self.recorder = MemoryRecorder()
        self.profiles = ServerProfiles(str(run_dir), config or ProfilerConfig(True), self.recorder)
        self.profiles.attach(self.core)

    async def over(self) -> None:
        self.core.is_profiling = False
        async with asyncio.timeout(20):
            while self.profiles.is_under_way:
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_module, "LOOK_SECONDS", 0.01)


@in_loop
async def test_begin_and_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, ProfilerConfig(True, "", 2, 70, ("shapes",)))
    order = await stage.profiles.start(ProfileRequest())
    assert (order.kind, order.steps, order.seconds, order.delay_steps, order.options) == (
        OPERATORS, 70, 60.0, 2, ("shapes",),
    )  # fmt: skip
    assert Path(order.directory) == tmp_path / "profiles" / order.profile
    assert Path(order.directory).stat().st_mode & 0o777 == 0o700
    with pytest.raises(ApiError, match="under way already") as refusal:
        await stage.profiles.start(ProfileRequest())
    assert refusal.value.status == 409
    stage.core.is_profiling = False
    assert await stage.profiles.stop() is True
    assert [method for method, _ in stage.core.calls] == ["start_profile", "stop_profile"]
    with pytest.raises(ApiError, match="no profile is under way") as refusal:
        await stage.profiles.stop()
    assert refusal.value.status == 409


@in_loop
async def test_a_stop_does_not_wait_for_long_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_module, "STOP_SECONDS", 0.05)
    stage = Stage(tmp_path)
    await stage.profiles.start(ProfileRequest())
    begun_at = time.monotonic()
    assert await stage.profiles.stop() is False
    assert time.monotonic() - begun_at < 2.0 * 3
    assert stage.profiles.is_under_way
    await stage.over()
    await stage.profiles.start(ProfileRequest())
    await stage.profiles.close()
    assert not stage.profiles.is_under_way


@in_loop
async def test_one_that_has_just_ended_does_not_hold_up_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles_module, "LOOK_SECONDS", 60.0)
    stage = Stage(tmp_path)
    first = await stage.profiles.start(ProfileRequest())
    stage.core.is_profiling = False
    second = await stage.profiles.start(ProfileRequest())
    assert first.directory != second.directory
    await stage.profiles.close()


@in_loop
async def test_before_the_engine_is_ready_it_is_503(tmp_path: Path) -> None:
    profiles = ServerProfiles(str(tmp_path), ProfilerConfig(True), MemoryRecorder())
    with pytest.raises(ApiError) as refusal:
        await profiles.start(ProfileRequest())
    assert (refusal.value.status, refusal.value.reason) == (503, "not_ready")


@in_loop
async def test_an_order_of_the_inspector_that_is_refused_is_recorded(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for request in (ProfileRequest("a", OPERATORS, 5.0, 10), ProfileRequest("b", OPERATORS, 5.0, 10)):
        stage.profiles.obey(request)
    async with asyncio.timeout(20):
        while not stage.recorder.of(ProfileEnded):
            await asyncio.sleep(0.01)
    (ended,) = stage.recorder.of(ProfileEnded)
    assert isinstance(ended, ProfileEnded)
    assert (ended.profile, ended.role, ended.error) == (
        "b", "APIServer_0", "409 a profile is under way already; POST /stop_profile ends it",
    )  # fmt: skip
    await stage.over()


@in_loop
async def test_an_engine_that_fails_leaves_the_way_free(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.core.failure = RequestFailedError("the engine's own words")
    with pytest.raises(RequestFailedError):
        await stage.profiles.start(ProfileRequest())
    stage.core.failure = None
    await stage.profiles.start(ProfileRequest())
    stage.core.failure = RequestFailedError("it died")
    await stage.over()


@in_loop
async def test_out_of_bounds_is_refused_before_a_directory_is_made(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for request in (
        ProfileRequest("../x", OPERATORS, 5.0, 10),
        ProfileRequest("a", "nonsense", 5.0, 10),
        ProfileRequest("a", OPERATORS, 1e9, 10),
        ProfileRequest("a", OPERATORS, 5.0, -1),
    ):
        with pytest.raises(RequestError):
            await stage.profiles.start(request)
    assert list(tmp_path.iterdir()) == []


@in_loop
async def test_a_directory_that_cannot_be_made_is_said_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    stage = Stage(tmp_path, ProfilerConfig(True, str(tmp_path / "taken")))
    with pytest.raises(ApiError, match=r"^the profile's directory cannot be made$") as refusal:
        await stage.profiles.start(ProfileRequest())
    assert refusal.value.status == 500


def test_only_the_newest_of_the_runs_own_profiles_are_kept(tmp_path: Path) -> None:
    made = [make_directory(str(tmp_path), "", f"p{number:02}") for number in range(NUM_KEPT + 3)]
    assert sorted((tmp_path / "profiles").iterdir()) == made[-NUM_KEPT:]
    own = tmp_path / "own"
    for number in range(NUM_KEPT + 3):
        make_directory(str(tmp_path), str(own), f"p{number:02}")
    assert len(list(own.iterdir())) == NUM_KEPT + 3
    assert make_directory(str(tmp_path), str(own), "p00").name == "p00-1"


@pytest.mark.parametrize("values", [{}, {"profile": "a", "kind": "samples", "seconds": "x", "steps": 1}])
def test_an_order_in_plain_values_is_read_or_refused(values: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        read_request(values)
    order = read_request({"profile": "a", "kind": "samples", "seconds": 5, "steps": 1})
    assert order == ProfileRequest("a", "samples", 5.0, 1)


@in_loop
async def test_a_profile_ends_with_its_engine_and_the_next_is_of_the_next_engine(tmp_path: Path) -> None:
    stage, after = Stage(tmp_path), Core()
    await stage.profiles.start(ProfileRequest("first", SAMPLES, 60.0, 10))
    stage.core.failure = EngineDeadError("EngineCore_DP0 was killed by SIGKILL")
    async with asyncio.timeout(20):
        while stage.profiles.is_under_way:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineDeadError):
            await stage.profiles.start(ProfileRequest())
        stage.profiles.attach(after)
        await stage.profiles.start(ProfileRequest())
    (ended,) = stage.recorder.of(ProfileEnded)
    assert isinstance(ended, ProfileEnded)
    assert (ended.profile, ended.role) == ("first", "APIServer_0"), "this process's own part was stopped too"
    assert after.calls[0][0] == "start_profile"
    await stage.profiles.close()
