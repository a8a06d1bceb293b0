"""LaunchedEngine: an engine of the launcher's through all its lives, of which it tells the API servers."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_process import READY_POLL_SECONDS, EngineProcess
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.errors import StartupError, VllmObsError
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.engine_deaths import told_cause
from vllm_obs.server.engine_keeper import Death, EngineKeeper, KeepLimits
from vllm_obs.server.launcher_messages import DEAD, EXPECTED, GIVEN_UP, SERVING, STARTING, EngineNews
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import EngineRestarted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchedBy:
    """What all engines of a launcher have in common: who is told of them, and how many API servers use them.

    `num_sequences` gives how many sequences an engine has, by its index, for the record of a death.
    """

    recorder: Recorder
    tell: Callable[[EngineNews], None]
    limits: KeepLimits
    num_clients: int
    num_sequences: Callable[[int], int] = lambda engine_index: 0
    module: str = ENGINE_MODULE


class OwnedEngine:
    """One life: an EngineProcess as its keeper needs it. `on_start` is called with each that is started."""

    def __init__(self, process: EngineProcess, on_start: Callable[["OwnedEngine"], None]) -> None:
        self.process = process
        self._is_end_recorded = False
        self._is_awaited = True
        self._on_start = on_start
        on_start(self)

    @property
    def generation(self) -> int:
        """How many were in its place before."""
        return self.process.config.generation

    def successor(self) -> "OwnedEngine":
        """Start the engine that takes this one's place. StartupError or ConfigError when it cannot be started."""
        return OwnedEngine(self.process.successor(), self._on_start)

    async def ready(self, timeout_seconds: float) -> EngineFacts:
        """Its facts once it serves; ConfigError or StartupError with its own cause otherwise."""
        deadline = time.monotonic() + timeout_seconds
        try:
            while (facts := self._facts()) is None:
                if time.monotonic() >= deadline:
                    raise self.process.late_error(timeout_seconds)
                await asyncio.sleep(READY_POLL_SECONDS)
        finally:
            self._is_awaited = False
        self.process.note_descendants()
        return facts

    def _facts(self) -> EngineFacts | None:
        try:
            return self.process.facts()
        except VllmObsError:
            self._is_end_recorded = True  # the process has done so
            raise

    def record_end(self) -> None:
        """It has ended; while somebody waits for it to be ready, that wait records it."""
        if not self._is_awaited and not self._is_end_recorded and self.has_stopped:
            self._is_end_recorded = True
            self.process.record_exit()

    def ask_to_stop(self) -> None:
        """Order it to end."""
        self.process.ask_to_stop()

    @property
    def has_stopped(self) -> bool:
        """Whether its process has ended."""
        return self.process.exit_cause is not None

    @property
    def has_left_nothing(self) -> bool:
        """Whether the processes below it have ended as well."""
        return self.process.has_left_nothing

    def shutdown(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End it within that time, then SIGKILL. Idempotent."""
        self.process.close(timeout_seconds)
        self._is_awaited = False
        self.record_end()


class LaunchedEngine:
    """Starts the engine at once; `keep` replaces the dead. Used on the launcher's event loop, in the main thread.

    Every change of its life is told as EngineNews, a death at once.
    """

    def __init__(self, config: VllmConfig, launched_by: LaunchedBy) -> None:
        self.index = config.engine_index
        self._launched_by = launched_by
        self._loop = asyncio.get_running_loop()
        self._died = asyncio.Event()
        self._death: Death | None = None
        self._num_open = 0
        self._start_seconds = 0.0
        self._current: OwnedEngine
        self._keeper: EngineKeeper[OwnedEngine] | None = None
        lives = [0] * launched_by.num_clients
        process = EngineProcess(config, launched_by.recorder, lives, launched_by.module)
        OwnedEngine(process, self._started)

    def _started(self, engine: OwnedEngine) -> None:
        self._current = engine
        self._died.clear()
        self._say(STARTING)
        engine.process.on_exit(lambda cause: self._call_soon(engine, cause))

    def _call_soon(self, engine: OwnedEngine, cause: str) -> None:
        """Called by the thread that watches the process."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended, engine, cause)

    def _ended(self, engine: OwnedEngine, cause: str) -> None:
        engine.record_end()
        if engine is not self._current or engine.process.dead_cause is None:
            return
        self._num_open = self._launched_by.num_sequences(self.index)
        is_its_own = self._keeper is not None and self._keeper.is_its_own(cause)
        self._say(DEAD, cause=cause, is_its_own=is_its_own)
        self._died.set()

    def _say(self, state: str, **more: object) -> None:
        engine = self._current
        news = EngineNews(self.index, engine.generation, engine.process.pid, state)
        self._launched_by.tell(news._replace(**more))  # type: ignore[arg-type]

    async def ready(self) -> EngineFacts:
        """Its facts once the first life serves; ConfigError or StartupError when it cannot."""
        begun_at, limits = time.monotonic_ns(), self._launched_by.limits
        facts = await self._current.ready(limits.startup_seconds)
        self._keeper = EngineKeeper(self._current, self, limits)
        self._keeper.begin(facts)
        self._start_seconds = (time.monotonic_ns() - begun_at) / 1e9
        self._say(SERVING, facts=facts)
        return facts

    async def lost(self, readying: "asyncio.Task[EngineFacts]") -> None:
        """StartupError once it has died that was ready, by `readying`; returns where that tells the cause."""
        cause = await self.wait_dead()
        await asyncio.wait({readying})
        if not readying.cancelled() and readying.exception() is None:
            raise StartupError(f"{cause} before all was ready")

    async def keep(self) -> str:
        """Keep it alive; why there is none any more, once the budget is spent."""
        assert self._keeper is not None, "it has been ready"
        cause = await self._keeper.keep()
        self._launched_by.recorder.record(self._keeper.given_up(self.index))
        self._say(GIVEN_UP, cause=cause)
        return cause

    async def clear(self) -> None:
        """Leave nothing of one that was given up: it may still load, and its ranks may live."""
        assert self._keeper is not None, "it has been ready"
        await self._keeper.clear()

    async def revive(self) -> bool:
        """Start another though the budget was spent; whether it is there."""
        assert self._keeper is not None, "it has been ready"
        return await self._keeper.revive()

    async def wait_dead(self) -> str:
        """The cause, once the life that was let in last has ended."""
        await self._died.wait()
        return self._current.process.exit_cause or "the engine is gone"

    def died(self, death: Death, is_replaced: bool) -> None:
        """It has died, and whether another is started in its place."""
        self._death = death
        logger.error("engine %d died with %d sequence(s) open: %s", self.index, self._num_open, death.cause)

    def expect(self, wait_seconds: float) -> None:
        """Another is started in so many seconds."""
        self._say(EXPECTED, seconds=wait_seconds + self._start_seconds)

    def let_in(self, engine: OwnedEngine, facts: EngineFacts, start_seconds: float) -> None:
        """Another is ready, which took so long."""
        self._start_seconds = start_seconds
        self._say(SERVING, facts=facts)
        death, ready_at = self._death, time.monotonic_ns()
        if death is None:
            return
        restarted = EngineRestarted(
            engine=str(self.index),
            generation=engine.generation,
            cause=told_cause(death.cause),
            num_open=self._num_open,
            died_at=death.died_at,
            ready_at=ready_at,
        )
        self._launched_by.recorder.record(restarted)
        seconds = (ready_at - death.died_at) / 1e9
        logger.warning(
            "engine %d is ready again after %.1f s (restart %d)", self.index, seconds, engine.generation
        )

    def forget(self, client_index: int) -> None:
        """That API server has ended: the engine ends what it ran, and expects another in its place."""
        self._current.process.replace_client(client_index)

    def ask_to_stop(self) -> None:
        """Order it to end."""
        self._current.ask_to_stop()

    @property
    def has_stopped(self) -> bool:
        """Whether its process has ended."""
        return self._current.has_stopped

    def close(self) -> None:
        """End what is left of it, now."""
        self._current.shutdown(timeout_seconds=0)
