"""Orders for profiles: read strictly, passed on, answered by what processes record, in time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from in_loop import in_loop

from vllm_obs.telemetry import profile_control
from vllm_obs.telemetry.profile_book import ProfileBook
from vllm_obs.telemetry.profile_control import BegunProfile, ProfileControl, ProfileOrder
from vllm_obs.telemetry.profile_files import ProfileFiles
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded
from vllm_obs.telemetry.telemetry_control import OrderError
from vllm_obs.telemetry.view import Source

SOURCE = Source("EngineCore_DP0", 10, 1, "0")


class Server:
    """Does as it is told, as far as the Observer can see."""

    def __init__(self, run_dir: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self.refusal = ""
        self.is_deaf = False
        self.book = ProfileBook()
        self.control = ProfileControl(self.book, ProfileFiles(run_dir), self._catch_up, lambda: 5)
        self.control.say = self._take

    async def _catch_up(self) -> None:
        """All has been read."""

    def _take(self, order: dict[str, Any]) -> None:
        self.told.append(order)
        name, kind = order["profile"], order["kind"]
        if self.refusal:
            ended = ProfileEnded(name, kind, "APIServer_0", 5, -1, 0, 0, 1, 1, [], self.refusal)
            self.book.record(SOURCE, ended)
        elif not self.is_deaf:
            self.book.record(SOURCE, ProfileBegun(name, kind, "Worker_TP0", 10, 0, order["steps"], 5.0, 1))

    def end(self, name: str) -> None:
        kind = self.book.profiles[name].kind
        self.book.record(SOURCE, ProfileEnded(name, kind, "Worker_TP0", 10, 0, 1, 0, 1, 1, ["a"], ""))


@in_loop
async def test_an_order_is_passed_on_and_the_next_waits_for_its_end(tmp_path: Path) -> None:
    server = Server(tmp_path)
    profile = await server.control.begin(ProfileOrder("operators", 2.0, 30))
    assert server.told == [{"profile": profile.name, **ProfileOrder("operators", 2.0, 30)._asdict()}]
    with pytest.raises(OrderError, match=f"the profile {profile.name} is under way") as refusal:
        await server.control.begin(ProfileOrder())
    assert refusal.value.status == 409
    server.end(profile.name)
    (tmp_path / "profiles" / profile.name).mkdir(parents=True)
    assert (await server.control.begin(ProfileOrder())).name != profile.name


@in_loop
async def test_a_refusal_of_the_server_comes_back_with_its_status(tmp_path: Path) -> None:
    server = Server(tmp_path)
    for words, status, message in (("409 busy now", 409, "busy now"), ("no torch here", 503, "no torch here")):
        server.book.profiles.clear()
        server.refusal = words
        with pytest.raises(OrderError, match=f"^{message}$") as refusal:
            await server.control.begin(ProfileOrder())
        assert refusal.value.status == status


@in_loop
async def test_nobody_begins_in_time_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path)
    server.is_deaf = True
    monkeypatch.setattr(profile_control, "DEADLINE_SECONDS", 0.05)
    with pytest.raises(OrderError, match="no process has begun") as refusal:
        await server.control.begin(ProfileOrder())
    assert refusal.value.status == 504


@in_loop
async def test_a_recording_takes_no_orders(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.control.say = None
    with pytest.raises(OrderError, match="this is a recording") as refusal:
        await server.control.begin(ProfileOrder())
    assert refusal.value.status == 409


@in_loop
async def test_the_observers_own_part_learns_when_all_is_over(tmp_path: Path) -> None:
    server = Server(tmp_path)
    found: list[tuple[str, str, bool]] = []

    async def part(begun: BegunProfile) -> None:
        found.append((begun.name, begun.directory, await begun.wait_over()))

    server.control.parts["samples"] = part
    profile = await server.control.begin(ProfileOrder("samples"))
    server.end(profile.name)
    async with asyncio.timeout(20):
        while not found:
            await asyncio.sleep(0.01)
    assert found == [(profile.name, str(tmp_path / "profiles" / profile.name), True)]


@in_loop
async def test_a_part_that_fails_or_hangs_ends_with_the_observer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)

    async def fail(begun: BegunProfile) -> None:
        raise ZeroDivisionError

    async def hang(begun: BegunProfile) -> None:
        await begun.wait_over()

    server.control.parts["samples"] = fail
    server.end((await server.control.begin(ProfileOrder("samples"))).name)
    await asyncio.sleep(0)
    server.control.parts["samples"] = hang
    (tmp_path / "profiles" / server.told[0]["profile"]).mkdir(parents=True)
    await server.control.begin(ProfileOrder("samples"))
    await server.control.close()
    assert "the Observer's own part of the profile" in caplog.text


@pytest.mark.parametrize(
    ("body", "order"),
    [
        (b"{}", ProfileOrder()),
        (b'{"seconds": 0.5, "steps": 2000}', ProfileOrder("operators", 0.5, 2000)),
        (b'{"kind": "samples"}', ProfileOrder("samples")),
    ],
)
def test_orders_are_read(body: bytes, order: ProfileOrder) -> None:
    assert ProfileOrder.read(body) == order


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"nonsense", "the body is not JSON"),
        (b"[]", "must be an object"),
        (b'{"profile": "x"}', "'profile' is unknown; kind, seconds, steps, .* can be given"),
        (b'{"kind": "memory"}', "kind must be one of operators, samples"),
        (b'{"kind": []}', "kind must be one of"),
        (b'{"seconds": 0}', "seconds must be a number above 0 and at most 600"),
        (b'{"seconds": 601}', "seconds must be"),
        (b'{"seconds": true}', "seconds must be"),
        (b'{"steps": 0}', "steps must be a whole number from 1 to 2000"),
        (b'{"steps": 1.5}', "steps must be"),
        (b'{"kind": "samples", "steps": 10}', "samples know only seconds, no steps"),
    ],
)
def test_what_is_no_order_is_refused_plainly(body: bytes, message: str) -> None:
    with pytest.raises(OrderError, match=message) as refusal:
        ProfileOrder.read(body)
    assert refusal.value.status == 400
