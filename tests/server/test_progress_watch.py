"""An engine that has work and does not move makes the server not ready, and moving makes it ready again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from http_app import Served, served

from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server import progress_watch
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.phase import Phase
from vllm_obs.server.progress_watch import LOOKS_A_NUDGE, ProgressWatch
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder

S = 10**9
PROBES = ("/readyz", "/livez", "/startupz", "/health", "/ping")


@dataclass
class Scene:
    """A served application, its engine's ring, and its watch, whose time is the test's."""

    app: Served
    core: FlightRecorder
    watch: ProgressWatch
    nudges: list[int]
    now: int = 0

    @property
    def last_sent_at(self) -> int:
        """When the sequence was submitted that the engine got last."""
        return self.app.api.engine.client.place(0).last_sent_at

    def pass_time(self, seconds: float) -> None:
        """Look twice a second."""
        for _ in range(int(2 * seconds)):
            self.now += S // 2
            self.watch.look(self.now)

    async def statuses(self) -> dict[str, int]:
        """What each probe answers."""
        return {path: (await self.app.client.get(path)).status_code for path in PROBES}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[FlightRecorder]:
    recorder = FlightRecorder(tmp_path / "EngineCore_DP0.ring", "EngineCore_DP0", 1 << 16)
    recorder.doing(Activity.WAITING)
    yield recorder
    recorder.close()


@asynccontextmanager
async def scene(core: FlightRecorder, stall_timeout: float = 10.0) -> AsyncIterator[Scene]:
    config = ServerConfig(stall_timeout=stall_timeout)
    async with served(FakeEngine(lambda request: [30] * 9), config, run_dir=core.path.parent) as app:
        nudges: list[int] = []
        watch = ProgressWatch(app.api, lambda: nudges.append(1))
        begun = Scene(app, core, watch, nudges)
        try:
            yield begun
        finally:
            watch.stop()


def test_a_stalled_engine_is_not_ready_and_alive_until_it_moves(
    core: FlightRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with scene(core) as here:
            app = here.app
            app.engine.go.clear()
            stream = await app.llm.submit("Hi", SamplingParams(max_tokens=2), "handle")
            here.now = here.last_sent_at
            core.heartbeat(here.now + 1)
            core.doing(Activity.EXECUTING)
            here.pass_time(10)
            assert set((await here.statuses()).values()) == {200}
            here.pass_time(1)
            assert app.api.phase is Phase.STALLED
            assert await here.statuses() == dict.fromkeys(PROBES, 200) | {"/readyz": 503}
            reply = await app.client.get("/readyz")
            assert (reply.json()["error"]["reason"], reply.headers["retry-after"]) == ("stalled", "2")
            assert (await app.client.get("/livez")).json() == {"status": "stalled"}
            refused = await app.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3})
            assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "stalled")
            core.advance()
            here.pass_time(0.5)
            assert (app.api.phase, (await here.statuses())["/readyz"]) == (Phase.READY, 200)
            app.engine.go.set()
            assert [delta.finish_reason async for delta in stream][-1] == "length"
            await stream.aclose()

    caplog.set_level(logging.WARNING)
    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == [
        "engine 0 has work and has not moved for 10.0 s: not ready",
        "the engine moves again: ready",
    ]


def test_an_idle_a_loading_and_a_paused_engine_are_ready_for_hours(core: FlightRecorder) -> None:
    async def scenario() -> None:
        async with scene(core) as here:
            here.pass_time(3600)
            assert here.app.api.phase is Phase.READY
            here.app.engine.go.clear()
            stream = await here.app.llm.submit("Hi", SamplingParams(max_tokens=2), "handle")
            for activity in (Activity.PAUSED, Activity.LOADING_MODEL):
                core.heartbeat(here.last_sent_at + 1)
                core.doing(activity)
                here.pass_time(3600)
                assert here.app.api.phase is Phase.READY
            await stream.aclose()

    asyncio.run(scenario())


def test_one_that_stopped_while_it_rested_is_found_although_its_client_has_left(core: FlightRecorder) -> None:
    async def scenario() -> None:
        async with scene(core) as here:
            here.app.engine.go.clear()
            stream = await here.app.llm.submit("Hi", SamplingParams(max_tokens=2), "handle")
            await stream.aclose()
            while here.app.engine.num_running:
                await asyncio.sleep(0)
            here.now = here.last_sent_at
            here.pass_time(11)
            assert here.app.api.phase is Phase.STALLED
            core.heartbeat(here.now)
            here.pass_time(0.5)
            assert here.app.api.phase is Phase.READY

    asyncio.run(scenario())


def test_a_stalled_engine_without_clients_is_nudged_now_and_then(
    core: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_watch, "LOOK_SECONDS", 0.001)

    async def scenario() -> None:
        async with scene(core, stall_timeout=0.02) as here:
            core.doing(Activity.EXECUTING)
            async with asyncio.timeout(20):
                while len(here.nudges) < 3:
                    await asyncio.sleep(0.001)
            num_looks = here.watch._num_looks
            assert num_looks // LOOKS_A_NUDGE >= 3
            core.doing(Activity.WAITING)
            core.heartbeat(1)
            await asyncio.sleep(0.05)
            num_nudges = len(here.nudges)
            await asyncio.sleep(0.1)
            assert len(here.nudges) == num_nudges

    asyncio.run(scenario())


def test_without_rings_nothing_is_watched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: []), run_dir=tmp_path) as app:
            watch = ProgressWatch(app.api, lambda: None)
            for second in range(100):
                watch.look(second * S)
            assert app.api.phase is Phase.READY
            watch.stop()

    asyncio.run(scenario())


def test_a_watch_that_fails_leaves_the_server_alone(
    core: FlightRecorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_watch, "LOOK_SECONDS", 0.001)

    async def scenario() -> None:
        async with scene(core) as here:

            def fail(looks: object) -> None:
                raise RuntimeError("planted")

            monkeypatch.setattr(progress_watch, "engines_of", fail)
            async with asyncio.timeout(20):
                while here.watch._num_looks < 3:
                    await asyncio.sleep(0.001)
            assert here.app.api.phase is Phase.READY

    asyncio.run(scenario())
    assert caplog.records[0].message == "the engine's progress could not be looked at"


def test_only_every_other_time_it_looks_at_engines_that_are_well_and_asked_for_nothing(
    core: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def note(seconds: float) -> float:
        waits.append(seconds)
        return seconds

    monkeypatch.setattr(progress_watch, "until_beat", note)

    def look_again(here: Scene) -> None:
        here.watch._timer.cancel()
        here.watch._again()

    async def scenario() -> None:
        async with scene(core) as here:
            look_again(here)
            here.app.engine.go.clear()
            stream = await here.app.llm.submit("Hi", SamplingParams(max_tokens=2), "handle")
            look_again(here)
            here.app.engine.go.set()
            async for _ in stream:
                pass
            await stream.aclose()
            look_again(here)
            here.app.api.engine.client.place(0).ailment = "broken"
            look_again(here)

    asyncio.run(scenario())
    assert waits == [1.0, 0.5, 1.0, 0.5]
