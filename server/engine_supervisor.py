"""EngineSupervisor: sees the engine die and starts another in its place, for as long as the budget lasts."""

import asyncio
import logging
import time
from dataclasses import replace
from typing import NamedTuple

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.old_rings import prune_old_rings
from vllm_obs.server.engine_deaths import OomKills, is_from_outside, told_cause
from vllm_obs.server.restart_budget import RestartBudget
from vllm_obs.server.state import ApiServer, Engine
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import EngineRestarted

logger = logging.getLogger(__name__)

ENGINE_LABEL = "0"
CLEAR_SECONDS = 2.0
"""How long what a dead engine leaves may take to end before it is killed."""
POLL_SECONDS = 0.01


class Death(NamedTuple):
    """An engine's end, seen at `died_at` (monotonic ns), with so many sequences open.

    `is_its_own` says that nothing from outside ended it: what it was doing may have.
    """

    cause: str
    died_at: int
    num_open: int
    is_its_own: bool


class EngineSupervisor:
    """Owns the server's engine: `client` is that of the one that serves, or that is being started.

    Used on the event loop of the main thread: the kernel ends an engine with the thread that started it.
    """

    def __init__(self, api: ApiServer, client: AsyncMPClient, recorder: ProcessRecorder) -> None:
        self.client = client
        self._api = api
        self._recorder = recorder
        self._budget = RestartBudget(api.server.engine_restarts)
        self._ready_at = 0

    async def keep(self) -> str:
        """Keep the engine alive that is there now; why there is none any more, once the budget is spent."""
        self._api.is_engine_kept = self._budget.max_restarts > 0
        self._ready_at = time.monotonic_ns()
        try:
            while True:
                await self._replace_the_dead(await _death_of(self._api.engine))
        except StartupError as error:
            cause = str(error)
        except Exception:
            logger.exception("the engine's supervisor failed")
            cause = "the engine died, and what starts another failed"
        self._api.is_engine_kept = False
        return cause

    async def _replace_the_dead(self, death: Death) -> None:
        """Let requests in to another engine. StartupError when there is to be none."""
        wait_seconds = self._budget.died((death.died_at - self._ready_at) / 1e9)
        if wait_seconds is None:
            raise StartupError(self._budget.says(death.cause))
        self._recorder.doing(Activity.RESTARTING)
        logger.error(
            "the engine died with %d sequence(s) open, another is started: %s", death.num_open, death.cause
        )
        before = self._api.engine
        if death.is_its_own:
            await _blame(before.llm)
        engine = await self._start(before, wait_seconds)
        self._let_in(engine, death)

    async def _start(self, before: Engine, wait_seconds: float) -> Engine:
        """An engine that is ready, at the first attempt or a later one. StartupError when there are no more."""
        while True:
            wanted_seconds = wait_seconds + self._api.engine_start_seconds
            self._api.engine_expected_at = time.monotonic_ns() + int(wanted_seconds * 1e9)
            await self._clear()
            await asyncio.sleep(wait_seconds)
            try:
                return await self._attempt(before)
            except Exception as error:
                cause = str(error) if isinstance(error, ConfigError | StartupError) else repr(error)
            next_wait_seconds = self._budget.failed_to_start()
            if next_wait_seconds is None:
                raise StartupError(self._budget.says(cause))
            logger.error("the engine could not be started again, it is tried once more: %s", cause)
            wait_seconds = next_wait_seconds

    async def _attempt(self, before: Engine) -> Engine:
        begun_at = time.monotonic_ns()
        client = self.client = self.client.successor()
        facts = await client.ready(self._api.server.startup_timeout)
        self._api.engine_start_seconds = (time.monotonic_ns() - begun_at) / 1e9
        llm = before.llm.successor(client)
        llm.start()
        return replace(before, llm=llm, facts=facts)

    async def _clear(self) -> None:
        """Leave nothing of an engine: its processes end, and its sockets and the rings of older ones go."""
        client = self.client
        client.ask_to_stop()  # where only the task died that reads its outputs
        deadline = time.monotonic() + CLEAR_SECONDS
        while not client.has_left_nothing and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        client.shutdown(timeout_seconds=0)
        prune_old_rings(self._api.config.run_dir)

    def _let_in(self, engine: Engine, death: Death) -> None:
        ready_at, generation = time.monotonic_ns(), self.client.generation
        self._ready_at = ready_at
        self._api.engine_expected_at = 0
        self._api.engine_ready(engine)
        self._recorder.record(
            EngineRestarted(
                engine=ENGINE_LABEL,
                generation=generation,
                cause=told_cause(death.cause),
                num_open=death.num_open,
                died_at=death.died_at,
                ready_at=ready_at,
            )
        )
        self._recorder.doing(Activity.SERVING)
        seconds = (ready_at - death.died_at) / 1e9
        logger.warning("another engine is ready after %.1f s (generation %d)", seconds, generation)


async def _death_of(engine: Engine) -> Death:
    oom_kills = OomKills(engine.facts.pid)
    cause = await engine.llm.wait_dead()
    is_its_own = oom_kills.have_risen or not is_from_outside(cause)
    return Death(cause, time.monotonic_ns(), len(engine.llm.open_at_death), is_its_own)


async def _blame(llm: AsyncLLM) -> None:
    """Find out which request the engine may have crashed on; its digest is made off the event loop."""
    refused = await asyncio.to_thread(llm.poison.crashed, llm.open_at_death)
    if refused:
        logger.error("the engine seems to have crashed on %s: not run again for now", ", ".join(refused[:8]))
