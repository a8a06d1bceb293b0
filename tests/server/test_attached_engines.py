"""The engines of a server that owns none: it has to end when it can use none of those that live."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_engine import FACTS, FakeEngine
from http_app import model_config, served, tokenizer
from in_loop import in_loop

from vllm_obs.engine.absent_engine import AbsentEngine
from vllm_obs.engine.balancer import make_balancer
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.crash_suspects import Suspect
from vllm_obs.server import attached_engines
from vllm_obs.server.attached_engines import AttachedEngines, Attachments
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.launcher_messages import DEAD, EXPECTED, GIVEN_UP, SERVING, STARTING, EngineNews
from vllm_obs.server.state import ApiServer, Engine
from vllm_obs.telemetry.recorder import MemoryRecorder, NullRecorder

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
@pytest.mark.parametrize("is_shared", [True, False])
async def test_one_of_several_servers_tells_that_it_had_nothing_open_too(is_shared: bool) -> None:
    engine = FakeEngine(lambda request: [30] * 1000)
    async with kept(engine) as (engines, _):
        told: list[list[Suspect]] = []
        losses = engines._api.engine.llm.losses
        losses.poison.shared, losses.poison.on_crash, losses.may_blame = is_shared, told.append, engines.may_blame
        engines.tell(EngineNews(0, 0, FACTS.pid, DEAD, "EngineCore_DP0 was killed by SIGSEGV", is_its_own=True))
        engine.die("EngineCore_DP0 was killed by SIGSEGV")
        await asyncio.wait_for(losses.wait(0), 20)
        assert told == ([[]] if is_shared else [])


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


class FakeAttachments:
    """Gives out engines in the order given; an exception in their place is raised."""

    def __init__(self, *engines: FakeEngine | Exception) -> None:
        self._engines = list(engines)
        self._lives: set[tuple[int, int]] = set()
        self.lost: str | None = None

    def attach(self, news: EngineNews) -> FakeEngine:
        engine = self._engines.pop(0)
        if isinstance(engine, Exception):
            raise engine
        self._lives.add((news.engine_index, news.generation))
        return engine

    def has(self, news: EngineNews) -> bool:
        return (news.engine_index, news.generation) in self._lives

    def tell(self, news: EngineNews) -> None:
        """It keeps nothing."""

    def give_up_lost(self) -> str | None:
        return self.lost


class Restarted:
    """A server in the place of another, which is told of two engines."""

    def __init__(self, *engines: FakeEngine | Exception) -> None:
        recorder = MemoryRecorder()
        self.api = ApiServer(model_config(), ServerConfig(engine_restarts=3, startup_timeout=5.0), recorder)
        absent = [AbsentEngine(0), AbsentEngine(1)]
        self.client = DPLBAsyncMPClient(absent, make_balancer("least_loaded", 0))
        self.llm = AsyncLLM(model_config(), self.client, tokenizer(), recorder)
        self.attachments: Any = FakeAttachments(*engines)
        self.engines = AttachedEngines(self.api, self.client, self.attachments)

    async def start(self) -> None:
        """As Lifecycle does it."""
        facts = await self.client.ready(5.0)
        self.llm.start()
        self.api.engine_ready(Engine(self.llm, tokenizer(), None, facts[0], self.client))  # type: ignore[arg-type]

    async def until_states(self, *states: str) -> None:
        async with asyncio.timeout(10):
            while tuple(self.api.engine_states.values()) != states:
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self.engines.close()
        await self.llm.shutdown()


def engines(*indices: int) -> list[FakeEngine]:
    return [FakeEngine(lambda request: [30] * 1000, engine_index=index) for index in indices]


def news_of(index: int, generation: int, state: str, **more: Any) -> EngineNews:
    facts = FACTS._replace(engine_index=index) if state == SERVING else None
    return EngineNews(index, generation, FACTS.pid, state, facts=facts, **more)


@in_loop
async def test_a_restarted_server_starts_with_the_engine_that_serves_and_takes_the_other_when_it_does() -> None:
    scene = Restarted(*engines(1, 0))
    scene.engines.tell(news_of(0, 2, GIVEN_UP, cause="too often"))
    scene.engines.tell(news_of(1, 0, SERVING))
    await scene.start()
    assert scene.api.engine_states == {"0": "given up", "1": "up"}
    scene.engines.tell(news_of(0, 3, STARTING))
    scene.engines.tell(news_of(0, 3, SERVING))
    await scene.until_states("up", "up")
    assert scene.api.engines_given_up == set()
    await scene.close()


@in_loop
async def test_an_engine_that_dies_while_a_server_starts_does_not_fail_the_start() -> None:
    serves, dies, successor = engines(0, 1, 1)
    dies.start_error = StartupError(KILLED)
    scene = Restarted(dies, serves, successor)
    scene.engines.tell(news_of(1, 0, STARTING))
    scene.engines.tell(news_of(1, 0, DEAD, cause=KILLED))
    scene.engines.tell(news_of(0, 0, SERVING))
    await scene.start()
    assert scene.api.engine_states == {"0": "up", "1": "restarting"}
    scene.engines.tell(news_of(1, 1, STARTING))
    await scene.until_states("up", "up")
    assert dies.num_shutdowns == 1
    await scene.close()


@in_loop
async def test_engines_that_serve_at_once_are_all_let_in() -> None:
    scene = Restarted(*engines(0, 1))
    for index in range(2):
        scene.engines.tell(news_of(index, 0, SERVING))
    await scene.start()
    await scene.until_states("up", "up")
    assert len(scene.client.engines) == 2
    await scene.close()


@in_loop
async def test_an_engine_that_cannot_be_attached_to_is_tried_again() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attached_engines, "LOOK_SECONDS", 0.01)
        scene = Restarted(ConfigError("no room"), *engines(0))
        scene.engines.tell(news_of(0, 0, STARTING))
        scene.engines.tell(news_of(0, 0, SERVING))
        await scene.start()
        assert scene.api.engine_states["0"] == "up"
        await scene.close()


@in_loop
async def test_a_server_ends_whose_engines_it_fails_to_attach_to() -> None:
    async with kept_with(FakeAttachments(RuntimeError("planted"))) as (served_engines, keeping):
        served_engines.tell(news_of(0, 1, STARTING))
        assert await asyncio.wait_for(keeping, 20) == "what attaches to engine 0 failed"
        assert not served_engines.are_given_up


@in_loop
async def test_a_server_ends_that_cannot_send_to_an_engine_whose_end_nobody_tells() -> None:
    attachments = FakeAttachments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attached_engines, "LOOK_SECONDS", 0.01)
        async with kept_with(attachments) as (_, keeping):
            attachments.lost = "EngineCore_DP0 is not connected"
            assert await asyncio.wait_for(keeping, 20) == "EngineCore_DP0 is not connected"


@asynccontextmanager
async def kept_with(attachments: Any) -> AsyncIterator[tuple[AttachedEngines, "asyncio.Task[str]"]]:
    async with kept(*engines(0)) as (made, keeping):
        made._attachments = attachments
        yield made, keeping
