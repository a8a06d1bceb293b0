"""EngineKeeper: keeps one engine alive, by another in its place when it dies, for as long as the budget lasts."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.engine.old_rings import prune_old_rings
from vllm_obs.server.engine_deaths import OomKills, is_from_outside
from vllm_obs.server.polling import wait_until
from vllm_obs.server.restart_budget import RestartBudget
from vllm_obs.telemetry.records import EngineGivenUp

logger = logging.getLogger(__name__)

CLEAR_SECONDS = 2.0
"""How long what a dead engine leaves may take to end before it is killed."""
REST_SECONDS = 600.0
"""How long an engine whose budget is spent is left alone, while others serve, before it is tried again."""


class KeptEngine(Protocol):
    """An engine's process as its owner sees it; AsyncMPClient is one."""

    def successor(self) -> Self:
        """Start the engine that takes this one's place. StartupError or ConfigError when it cannot be started."""

    async def ready(self, timeout_seconds: float) -> EngineFacts:
        """Its facts once it serves; ConfigError or StartupError with its own cause otherwise."""

    def ask_to_stop(self) -> None:
        """Order it to end."""

    @property
    def has_stopped(self) -> bool:
        """Whether its process has ended."""

    @property
    def has_left_nothing(self) -> bool:
        """Whether the processes below it have ended as well."""

    def shutdown(self, timeout_seconds: float) -> None:
        """End it within that time, then SIGKILL, and take its sockets away. Idempotent."""


E = TypeVar("E", bound=KeptEngine)
E_contra = TypeVar("E_contra", bound=KeptEngine, contravariant=True)


class Death(NamedTuple):
    """An engine's end, seen at `died_at` (monotonic ns).

    `is_its_own` says that nothing from outside ended it: what it was doing may have.
    """

    cause: str
    died_at: int
    is_its_own: bool


class EngineSeat(Protocol[E_contra]):
    """What a keeper needs of those who use the engine, and tells them."""

    async def wait_dead(self) -> str:
        """The cause, once the engine that was let in last is dead for them."""

    def died(self, death: Death, is_replaced: bool) -> None:
        """It has died, and whether another is started in its place."""

    def expect(self, wait_seconds: float) -> None:
        """Another is started in so many seconds."""

    def let_in(self, engine: E_contra, facts: EngineFacts, start_seconds: float) -> None:
        """Another is ready, which took so long."""


@dataclass(frozen=True)
class KeepLimits:
    """How often within a minute another engine is started, how long a start may take, and where rings lie."""

    max_restarts: int
    startup_seconds: float
    run_dir: str = ""


class EngineKeeper(Generic[E]):
    """Owns an engine: `engine` is the one that serves, or that is being started.

    Used on the event loop of the main thread: the kernel ends an engine with the thread that started it.
    """

    def __init__(self, engine: E, seat: EngineSeat[E], limits: KeepLimits) -> None:
        self.engine = engine
        self._seat = seat
        self._limits = limits
        self._budget = RestartBudget(limits.max_restarts)
        self._ready_at = 0
        self._oom_kills: OomKills | None = None

    def begin(self, facts: EngineFacts) -> None:
        """The engine that is there is ready now."""
        self._ready_at = time.monotonic_ns()
        self._oom_kills = OomKills(facts.pid)

    def is_its_own(self, cause: str) -> bool:
        """Whether a death for that cause may be due to what the engine was doing."""
        has_lacked_memory = self._oom_kills is not None and self._oom_kills.have_risen
        return has_lacked_memory or not is_from_outside(cause)

    async def keep(self) -> str:
        """Keep alive the engine that is there now; why there is none any more, once the budget is spent."""
        try:
            while True:
                cause = await self._seat.wait_dead()
                await self._replace(Death(cause, time.monotonic_ns(), self.is_its_own(cause)))
        except StartupError as error:
            return str(error)
        except Exception:
            logger.exception("what keeps an engine alive failed")
            return "the engine died, and what starts another failed"

    def given_up(self, engine_index: int) -> EngineGivenUp:
        """What is recorded once the budget is spent, for how long nothing is tried."""
        rest_seconds = REST_SECONDS if self._limits.max_restarts else 0.0
        return EngineGivenUp(str(engine_index), rest_seconds, time.monotonic_ns())

    async def revive(self) -> bool:
        """Start another though the budget was spent, which counts anew; whether it is there."""
        self._budget = RestartBudget(self._limits.max_restarts)
        try:
            await self._start(0.0)
        except Exception as error:
            logger.error("the engine could not be started again: %s", told(error))
            return False
        return True

    async def _replace(self, death: Death) -> None:
        """Let another engine in. StartupError when there is to be none."""
        wait_seconds = self._budget.died((death.died_at - self._ready_at) / 1e9)
        self._seat.died(death, is_replaced=wait_seconds is not None)
        if wait_seconds is None:
            raise StartupError(self._budget.says(death.cause))
        await self._start(wait_seconds)

    async def _start(self, wait_seconds: float) -> None:
        """Let an engine in, at the first attempt or a later one. StartupError when there are no more."""
        while True:
            self._seat.expect(wait_seconds)
            await self.clear()
            await asyncio.sleep(wait_seconds)
            try:
                return await self._attempt()
            except Exception as error:
                cause = told(error)
            next_wait_seconds = self._budget.failed_to_start()
            if next_wait_seconds is None:
                raise StartupError(self._budget.says(cause))
            logger.error("the engine could not be started again, it is tried once more: %s", cause)
            wait_seconds = next_wait_seconds

    async def _attempt(self) -> None:
        begun_at = time.monotonic_ns()
        self.engine = self.engine.successor()
        facts = await self.engine.ready(self._limits.startup_seconds)
        self.begin(facts)
        self._seat.let_in(self.engine, facts, (self._ready_at - begun_at) / 1e9)

    async def clear(self) -> None:
        """Leave nothing of an engine: its processes end, and its sockets and the rings of older ones go."""
        engine = self.engine
        engine.ask_to_stop()  # where only who reads its outputs has failed
        await wait_until(lambda: engine.has_left_nothing, CLEAR_SECONDS)
        engine.shutdown(timeout_seconds=0)
        prune_old_rings(self._limits.run_dir)


def told(error: Exception) -> str:
    """What is said of a start that failed."""
    return str(error) if isinstance(error, ConfigError | StartupError) else repr(error)
