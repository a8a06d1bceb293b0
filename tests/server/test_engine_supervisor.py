"""An engine that dies is replaced: who is told what meanwhile, and what goes on with the one that comes after."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import Served, served
from in_loop import in_loop

from vllm_obs.engine.errors import EngineDeadError, StartupError
from vllm_obs.server import restart_budget
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.engine_supervisor import EngineSupervisor
from vllm_obs.server.errors import seconds_until
from vllm_obs.server.phase import Phase
from vllm_obs.telemetry.records import EngineRestarted

TEXT = "/v1/completions"
BODY = {"prompt": "Hi", "max_tokens": 50}
SEGFAULT = "EngineCore_DP0 was killed by SIGSEGV"
KILLED = "EngineCore_DP0 was killed by SIGKILL"
PROBES = ("/livez", "/startupz", "/readyz", "/health")


def engine(seconds_a_token: float = 0.0) -> FakeEngine:
    return FakeEngine(lambda request: [30] * 1000, seconds_a_token)


@dataclass
class Kept:
    """A served application whose engines are kept alive."""

    app: Served
    supervisor: EngineSupervisor
    keeping: "asyncio.Task[str]"

    @property
    def engine(self) -> Any:
        (engine,) = self.supervisor.engines
        return engine

    async def until(self, phase: Phase) -> None:
        async with asyncio.timeout(20):
            while self.app.api.phase is not phase:
                await asyncio.sleep(0.005)

    async def probes(self) -> list[int]:
        return [(await self.app.client.get(path)).status_code for path in PROBES]

    async def asked(self, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, str]:
        """The status and the reason of a completion."""
        reply = await self.app.post(TEXT, body or BODY, **headers)
        return reply.status_code, "" if reply.status_code == 200 else reply.json()["error"]["reason"]


@asynccontextmanager
async def kept(first: FakeEngine, *later: FakeEngine, restarts: int = 3) -> AsyncIterator[Kept]:
    first.successors = list(later)
    async with served(first, ServerConfig(engine_restarts=restarts)) as app:
        supervisor = EngineSupervisor(app.api, app.api.engine.client, app.recorder)
        keeping = asyncio.create_task(supervisor.keep())
        await asyncio.sleep(0)
        try:
            yield Kept(app, supervisor, keeping)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await app.api.engine.llm.shutdown()


@in_loop
async def test_while_another_starts_probes_and_requests_say_so_and_then_it_serves() -> None:
    first, second = engine(0.01), engine()
    second.loaded.clear()
    async with kept(first, second) as here:
        here.app.api.engine_start_seconds = 8.9
        waiting = [asyncio.create_task(here.app.post(TEXT, BODY)) for _ in range(3)]
        while first.num_running < 3:
            await asyncio.sleep(0.005)
        first.die(KILLED)
        replies = await asyncio.gather(*waiting)
        errors = [(reply.status_code, reply.json()["error"]["message"]) for reply in replies]
        assert errors == [(500, f"the engine stopped before the request was finished: {KILLED}")] * 3
        await here.until(Phase.RESTARTING)
        assert await here.probes() == [200, 200, 503, 503]
        refused = await here.app.post(TEXT, BODY)
        error = refused.json()["error"]
        assert (refused.status_code, error["reason"]) == (503, "restarting")
        ready = await here.app.client.get("/readyz")
        assert ready.json()["error"]["reason"] == "restarting"
        for reply in (refused, ready):
            assert 7 <= int(reply.headers["retry-after"]) <= 9, "what is left of a start of 8.9 s"
        assert (await here.app.client.get("/livez")).json() == {"status": "restarting"}
        second.loaded.set()
        await here.until(Phase.READY)
        assert await here.probes() == [200] * 4
        assert await here.asked() == (200, "")
        assert (first.num_shutdowns, here.engine, second.generation) == (1, second, 1)
    (restart,) = here.app.recorder.of(EngineRestarted)
    assert isinstance(restart, EngineRestarted)
    assert restart[:4] == ("0", 1, KILLED, 3)
    assert restart.died_at < restart.ready_at


@in_loop
async def test_who_comes_meanwhile_is_told_what_is_left_of_the_time_that_the_last_start_took() -> None:
    second = engine()
    second.loaded.clear()
    async with kept(engine(), second) as here:
        told = []
        for start_seconds in (90.0, 5.4):
            here.app.api.engine_start_seconds = start_seconds
            here.engine.die(KILLED)
            await here.until(Phase.RESTARTING)
            replies = [await here.app.post(TEXT, BODY) for _ in range(10)]
            told.append({reply.headers["retry-after"] for reply in replies})
            second.loaded.set()
            await here.until(Phase.READY)
            assert 0 < here.app.api.engine_start_seconds < 5.4, "what the last one took"
        assert told == [{"60"}, {"6"}]
        assert seconds_until(time.monotonic_ns() - 1_000_000_000) == 1, "it takes longer than the last time"


@in_loop
async def test_a_stream_ends_with_an_error_event_that_names_the_cause() -> None:
    first = engine(0.01)
    async with kept(first) as here:
        asked = asyncio.create_task(here.app.post(TEXT, {**BODY, "stream": True}))
        while first.num_tokens_sent < 2:
            await asyncio.sleep(0.005)
        first.die("EngineCore_DP0 exited with code 70: Worker_TP1 was killed by SIGKILL")
        *events, last = [line for line in (await asked).text.split("\n\n") if line]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], error["reason"]) == (500, "engine_dead")
        assert error["message"].endswith(": Worker_TP1 was killed by SIGKILL")
        assert len(events) >= 2
        await here.until(Phase.READY)


@in_loop
async def test_calls_that_waited_fail_and_later_ones_reach_the_new_engine() -> None:
    first, second = engine(), engine()
    async with kept(first, second) as here:
        second.loaded.clear()
        first.die(KILLED)
        await here.until(Phase.RESTARTING)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await here.app.llm.call_utility("is_profiling")
        second.loaded.set()
        await here.until(Phase.READY)
        await here.app.llm.call_utility("is_profiling")
        assert second.utility_calls == [("is_profiling", ())]
        assert (await here.app.post("/tokenize", {"prompt": "Hi"})).status_code == 200


@in_loop
async def test_when_the_budget_is_spent_it_says_how_often_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async with kept(engine(), restarts=1) as here:
        here.engine.die(KILLED)
        await here.until(Phase.READY)
        here.engine.die(SEGFAULT)
        cause = await asyncio.wait_for(here.keeping, 20)
        assert cause.startswith("the engine died 2 times in ")
        assert "s, and --engine-restarts allows 1 restarts in 60 s of serving; " in cause
        assert cause.endswith(f"; the last time: {SEGFAULT}")
        assert here.app.api.phase is Phase.DEAD
        assert await here.probes() == [503] * 4
        assert await here.asked() == (503, "engine_dead")
    assert f"another is started: {KILLED}" in caplog.text


@in_loop
async def test_the_time_that_an_engine_loads_does_not_fill_the_budget_again() -> None:
    slow = engine()
    slow.loaded.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restart_budget, "WINDOW_SECONDS", 1.0)
        async with kept(engine(), slow, restarts=1) as here:
            here.engine.die(SEGFAULT)
            await asyncio.sleep(1.2)
            slow.loaded.set()
            await here.until(Phase.READY)
            here.engine.die(SEGFAULT)
            assert "died 2 times" in await asyncio.wait_for(here.keeping, 20)


@in_loop
async def test_an_engine_that_has_served_fills_the_budget_again() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restart_budget, "WINDOW_SECONDS", 0.0)
        async with kept(engine(), restarts=1) as here:
            for _ in range(3):
                here.engine.die(SEGFAULT)
                await here.until(Phase.RESTARTING)
                await here.until(Phase.READY)


@in_loop
async def test_without_restarts_the_first_death_is_the_end() -> None:
    async with kept(engine(), restarts=0) as here:
        here.engine.die(KILLED)
        assert await asyncio.wait_for(here.keeping, 20) == f"the engine died: {KILLED}"
        assert here.app.api.phase is Phase.DEAD


@in_loop
async def test_a_start_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    broken, good = engine(), engine()
    broken.start_error = StartupError("EngineCore_DP0 exited with code 3")
    async with kept(engine(), broken, good) as here:
        here.engine.die(KILLED)
        await here.until(Phase.READY)
        assert here.engine is good
        assert (broken.num_shutdowns, good.generation) == (1, 2)
    assert "could not be started again, it is tried once more: EngineCore_DP0 exited with code 3" in caplog.text


@in_loop
async def test_starts_that_always_fail_spend_the_budget() -> None:
    broken = engine()
    broken.start_error = OSError("no room")
    async with kept(engine(), broken, restarts=1) as here:
        here.engine.die(KILLED)
        assert "no room" in await asyncio.wait_for(here.keeping, 20)


async def crash(here: Kept, body: dict[str, Any], cause: str) -> None:
    """Have one request open, and the engine die of `cause`."""
    dying = here.engine
    dying.go.clear()
    asked = asyncio.create_task(here.asked(body))
    while not dying.num_running:
        await asyncio.sleep(0.005)
    dying.die(cause)
    assert await asked == (500, "engine_dead")
    await here.until(Phase.READY)


@in_loop
async def test_a_request_that_an_engine_crashed_on_does_not_reach_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    async with kept(engine()) as here:
        await crash(here, BODY, SEGFAULT)
        assert await here.asked() == (400, "poison_request")
        assert here.engine.added == []
        assert await here.asked({**BODY, "max_tokens": 49}) == (200, "")
        await crash(here, {"prompt": "another"}, SEGFAULT)
        assert await here.asked() == (400, "poison_request"), "engines that come after know it too"
    assert "seems to have crashed on " in caplog.text


@in_loop
async def test_a_signal_that_somebody_sent_is_no_requests_fault() -> None:
    async with kept(engine()) as here:
        await crash(here, BODY, KILLED)
        assert await here.asked() == (200, "")


@in_loop
async def test_who_ends_with_the_outputs_that_could_not_be_taken_is_told() -> None:
    async with kept(engine(), restarts=0) as here:
        here.app.api.engine.llm.queue.saw = lambda outputs: 1 // 0  # type: ignore[method-assign, assignment]
        async with asyncio.timeout(20):
            assert await here.asked({"prompt": "Hi", "max_tokens": 1}) == (500, "engine_dead")


@in_loop
async def test_an_engine_that_lives_on_while_nobody_reads_it_is_ended_first() -> None:
    first, second = engine(), engine()
    async with kept(first, second) as here:
        first.say("no outputs")  # type: ignore[arg-type]
        await asyncio.wait_for(asyncio.to_thread(first.was_asked_to_stop.wait, 20), 20)
        await here.until(Phase.READY)
        assert (first.num_shutdowns, here.engine) == (1, second)
        assert await here.asked() == (200, "")


@in_loop
async def test_a_server_whose_outputs_nobody_reads_any_more_is_not_kept() -> None:
    def fail(loss: object) -> None:
        raise RuntimeError("planted")

    async with kept(engine()) as scene:
        scene.app.api.engine.llm.losses.lose = fail  # type: ignore[method-assign]
        scene.engine.die(KILLED)
        assert "reads the engine's outputs failed" in await asyncio.wait_for(asyncio.shield(scene.keeping), 20)
        assert scene.app.api.phase is Phase.DEAD
