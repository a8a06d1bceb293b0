"""One engine of several dies: the others serve on, and it comes back for as long as its own budget lasts."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import Served, served
from in_loop import in_loop

from vllm_obs.server import engine_keeper, engine_supervisor
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.engine_supervisor import EngineSupervisor
from vllm_obs.server.phase import Phase
from vllm_obs.telemetry.records import EngineGivenUp, EngineRestarted

TEXT = "/v1/completions"
BODY = {"prompt": "Hi", "max_tokens": 40}
KILLED = "EngineCore_DP1 was killed by SIGKILL"
SEGFAULT = "EngineCore_DP1 was killed by SIGSEGV"


def engine(index: int, seconds_a_token: float = 0.0) -> FakeEngine:
    return FakeEngine(lambda request: [30] * 1000, seconds_a_token, index)


@dataclass
class Kept:
    """A served application over two engines that are kept alive."""

    app: Served
    supervisor: EngineSupervisor
    keeping: "asyncio.Task[str]"

    def engine(self, index: int) -> Any:
        return self.supervisor.engines[index]

    @property
    def states(self) -> dict[str, str]:
        return self.app.api.engine_states

    async def until(self, *states: str) -> None:
        async with asyncio.timeout(20):
            while tuple(self.states.values()) != states:
                await asyncio.sleep(0.005)

    async def asked(self, **body: Any) -> tuple[int, str]:
        """The status and the reason of a completion."""
        reply = await self.app.post(TEXT, {**BODY, **body})
        return reply.status_code, "" if reply.status_code == 200 else reply.json()["error"]["reason"]


@asynccontextmanager
async def kept(*engines: FakeEngine, restarts: int = 3) -> AsyncIterator[Kept]:
    first, *others = engines
    async with served(first, ServerConfig(engine_restarts=restarts), others=others) as app:
        supervisor = EngineSupervisor(app.api, app.api.engine.client, app.recorder)
        keeping = asyncio.create_task(supervisor.keep())
        await asyncio.sleep(0)
        try:
            yield Kept(app, supervisor, keeping)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


@in_loop
async def test_only_the_streams_of_the_dead_one_end_and_it_comes_back() -> None:
    first, second, third = engine(0, 0.01), engine(1, 0.01), engine(1)
    second.successors = [third]
    third.loaded.clear()
    async with kept(first, second) as here:
        asked = [asyncio.create_task(here.app.post(TEXT, {**BODY, "stream": True})) for _ in range(6)]
        while first.num_running + second.num_running < 6:
            await asyncio.sleep(0.005)
        num_lost = second.num_running
        assert num_lost == 3
        second.die(KILLED)
        lasts = [[line for line in (await reply).text.split("\n\n") if line][-1] for reply in asked]
        errors = [json.loads(line[6:])["error"] for line in lasts if line != "data: [DONE]"]
        assert [error["reason"] for error in errors] == ["engine_dead"] * num_lost
        assert all(error["message"].endswith(KILLED) for error in errors)
        await here.until("up", "restarting")
        ready = await here.app.client.get("/readyz")
        expected = {"status": "ready", "engines": {"0": "up", "1": "restarting"}}
        assert (ready.status_code, ready.json()) == (200, expected)
        assert await here.asked() == (200, "")
        assert first.num_shutdowns == 0
        third.loaded.set()
        await here.until("up", "up")
        for _ in range(8):
            assert await here.asked() == (200, "")
        assert third.added
        assert here.engine(1) is third
    (restart,) = here.app.recorder.of(EngineRestarted)
    assert isinstance(restart, EngineRestarted)
    assert restart[:4] == ("1", 1, KILLED, num_lost)


@in_loop
async def test_what_crashed_one_engine_does_not_reach_the_other() -> None:
    async with kept(engine(0), engine(1)) as here:
        here.engine(0).go.clear()
        here.engine(1).go.clear()
        asked = asyncio.create_task(here.asked(prompt="poison"))
        while not (running := [each for each in (here.engine(0), here.engine(1)) if each.num_running]):
            await asyncio.sleep(0)
        (dying,) = running
        (other,) = {here.engine(0), here.engine(1)} - {dying}
        other.go.set()
        dying.die(SEGFAULT)
        assert await asked == (500, "engine_dead")
        assert await here.asked(prompt="poison") == (400, "poison_request"), "from the moment it is told of"
        assert other.added == []
        assert await here.asked() == (200, "")


@in_loop
async def test_while_none_is_there_it_says_so_and_the_first_that_is_back_serves() -> None:
    slow = engine(1)
    slow.loaded.clear()
    first, second = engine(0), engine(1)
    second.successors = [slow]
    back = engine(0)
    back.loaded.clear()
    first.successors = [back]
    async with kept(first, second) as here:
        second.die(KILLED)
        await here.until("up", "restarting")
        assert here.app.api.phase is Phase.READY
        first.die("EngineCore_DP0 was killed by SIGKILL")
        await here.until("restarting", "restarting")
        assert here.app.api.phase is Phase.RESTARTING
        assert await here.asked() == (503, "restarting")
        back.loaded.set()
        await here.until("up", "restarting")
        assert (here.app.api.phase, await here.asked()) == (Phase.READY, (200, ""))


@in_loop
async def test_the_server_goes_on_without_one_whose_budget_is_spent_and_ends_with_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    async with kept(engine(0), engine(1), restarts=1) as here:
        here.engine(1).die(KILLED)
        await here.until("up", "up")
        here.engine(1).die(SEGFAULT)
        await here.until("up", "given up")
        assert await here.asked() == (200, "")
        assert not here.keeping.done()
        assert "engine 1 is given up for now, the others go on: the engine died 2 times" in caplog.text
        (given_up,) = here.app.recorder.of(EngineGivenUp)
        assert given_up[:2] == ("1", engine_keeper.REST_SECONDS)
        here.engine(0).die("EngineCore_DP0 was killed by SIGKILL")
        await here.until("restarting", "given up")
        await here.until("up", "given up")
        here.engine(0).die("EngineCore_DP0 was killed by SIGKILL")
        cause = await asyncio.wait_for(here.keeping, 20)
        assert "the last time: EngineCore_DP0 was killed by SIGKILL" in cause
        assert here.app.api.phase is Phase.DEAD
        assert await here.asked() == (503, "engine_dead")


@in_loop
async def test_one_that_was_given_up_is_tried_again_after_a_rest() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_supervisor, "REST_SECONDS", 0.05)
        async with kept(engine(0), engine(1), restarts=1) as here:
            here.engine(1).die(KILLED)
            await here.until("up", "up")
            here.engine(1).die(KILLED)
            await here.until("up", "given up")
            await here.until("up", "up")
            assert here.engine(1).generation == 2
            here.engine(1).die(KILLED)
            await here.until("up", "restarting")
            await here.until("up", "up")


@in_loop
async def test_without_restarts_the_others_go_on_and_the_last_death_is_the_end() -> None:
    async with kept(engine(0), engine(1), restarts=0) as here:
        here.engine(0).die("EngineCore_DP0 was killed by SIGKILL")
        await here.until("given up", "up")
        assert (here.app.api.phase, await here.asked()) == (Phase.READY, (200, ""))
        here.engine(1).die(KILLED)
        assert await asyncio.wait_for(here.keeping, 20) == f"the engine died: {KILLED}"
        assert here.app.api.phase is Phase.DEAD
