"""The engines of a server that owns none: it has to end when it can use none of those that live."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fake_engine import FACTS, FakeEngine
from http_app import served
from in_loop import in_loop

from vllm_obs.engine.engine_sockets import Route
from vllm_obs.server.attached_engines import AttachedEngines, Attachments
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.launcher_messages import DEAD, EXPECTED, GIVEN_UP, EngineNews
from vllm_obs.telemetry.recorder import NullRecorder

KILLED = "EngineCore_DP0 was killed by SIGKILL"


@asynccontextmanager
async def kept(engine: FakeEngine) -> AsyncIterator[tuple[AttachedEngines, "asyncio.Task[str]"]]:
    async with served(engine, ServerConfig(engine_restarts=3)) as app:
        attachments = Attachments(app.api.config, Route(), NullRecorder())
        engines = AttachedEngines(app.api, app.api.engine.client, attachments)
        keeping = asyncio.create_task(engines.keep())
        await asyncio.sleep(0)
        try:
            yield engines, keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


@in_loop
async def test_who_fails_to_read_an_engine_that_lives_ends() -> None:
    engine = FakeEngine(lambda request: [30] * 1000)
    async with kept(engine) as (engines, keeping):
        engine.say("no outputs")  # type: ignore[arg-type]
        assert "reads the engine's outputs failed" in await asyncio.wait_for(keeping, 20)
        assert not engines.are_given_up


@in_loop
async def test_what_the_launcher_holds_of_a_death_is_not_forgotten_with_its_next_news() -> None:
    async with kept(FakeEngine(lambda request: [30])) as (engines, _):
        engines.tell(EngineNews(0, 0, FACTS.pid, DEAD, "EngineCore_DP0 was killed by SIGSEGV", is_its_own=True))
        engines.tell(EngineNews(0, 0, FACTS.pid, EXPECTED, seconds=1.0))
        assert engines.may_blame(0, "")


@in_loop
async def test_a_death_is_the_launchers_affair_until_it_gives_up() -> None:
    engine = FakeEngine(lambda request: [30] * 1000)
    async with kept(engine) as (engines, keeping):
        engine.die(KILLED)
        engines.tell(EngineNews(0, 0, FACTS.pid, DEAD, KILLED))
        done, _ = await asyncio.wait({keeping}, timeout=0.2)
        assert not done
        engines.tell(EngineNews(0, 0, FACTS.pid, GIVEN_UP, "too often"))
        assert await asyncio.wait_for(keeping, 20) == "too often"
        assert engines.are_given_up
