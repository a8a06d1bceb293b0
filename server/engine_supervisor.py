"""EngineSupervisor: keeps a server's engines alive, each with its own budget, while any of them is."""

import asyncio
import logging
import time

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.engine_deaths import told_cause
from vllm_obs.server.engine_keeper import REST_SECONDS, Death, EngineKeeper, KeepLimits
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import EngineGivenUp, EngineRestarted

logger = logging.getLogger(__name__)


class ServerSeat:
    """What a keeper tells the server of one of its engines."""

    def __init__(self, api: ApiServer, recorder: ProcessRecorder, engine_index: int, is_alone: bool) -> None:
        self._api = api
        self._recorder = recorder
        self._engine_index = engine_index
        self._death: Death | None = None
        self._num_open = 0
        self.name = "the engine" if is_alone else f"engine {engine_index}"

    async def wait_dead(self) -> str:
        """See `EngineSeat`; its streams have been told by then."""
        loss = await self._api.engine.llm.losses.wait(self._engine_index)
        self._num_open = loss.num_open
        return loss.cause

    def died(self, death: Death, is_replaced: bool) -> None:
        """See `EngineSeat`."""
        self._death = death
        if not is_replaced:
            return
        if self._api.engine.llm.dead_cause is not None:
            self._recorder.doing(Activity.RESTARTING)
        words = "%s died with %d sequence(s) open, another is started: %s"
        logger.error(words, self.name, self._num_open, death.cause)

    def expect(self, wait_seconds: float) -> None:
        """See `EngineSeat`: another is expected to take as long as the last one took."""
        seconds = wait_seconds + self._api.engine_start_seconds
        self._api.engines_expected_at[self._engine_index] = time.monotonic_ns() + int(seconds * 1e9)

    def give_up(self, given_up: EngineGivenUp) -> None:
        """None is started in its place now."""
        self._recorder.record(given_up)
        self._api.engines_given_up.add(self._engine_index)
        self._api.engines_expected_at.pop(self._engine_index, None)

    def let_in(self, engine: AsyncMPClient, facts: EngineFacts, start_seconds: float) -> None:
        """See `EngineSeat`."""
        ready_at = time.monotonic_ns()
        self._api.engines_expected_at.pop(self._engine_index, None)
        self._api.engines_given_up.discard(self._engine_index)
        self._api.engine_start_seconds = start_seconds
        was_dead = self._api.engine.llm.dead_cause is not None
        self._api.engine.llm.let_in(engine, facts)
        if was_dead:
            self._recorder.doing(Activity.SERVING)
        if self._death is not None:
            self._record(self._death, engine.generation, ready_at)

    def _record(self, death: Death, generation: int, ready_at: int) -> None:
        self._recorder.record(
            EngineRestarted(
                engine=str(self._engine_index),
                generation=generation,
                cause=told_cause(death.cause),
                num_open=self._num_open,
                died_at=death.died_at,
                ready_at=ready_at,
            )
        )
        seconds = (ready_at - death.died_at) / 1e9
        logger.warning("%s is ready again after %.1f s (restart %d)", self.name, seconds, generation)


class EngineSupervisor:
    """Owns the server's engines: those that serve, and those that are being started."""

    def __init__(self, api: ApiServer, client: DPLBAsyncMPClient, recorder: ProcessRecorder) -> None:
        self.client = client
        self._api = api
        self._max_restarts = api.server.engine_restarts
        limits = KeepLimits(self._max_restarts, api.server.startup_timeout, api.config.run_dir)
        engines = {engine.engine_index: engine for engine in client.clients}
        is_alone = len(engines) == 1
        self._seats = {index: ServerSeat(api, recorder, index, is_alone) for index in engines}
        self._keepers = {
            index: EngineKeeper(engine, self._seats[index], limits) for index, engine in engines.items()
        }

    @property
    def engines(self) -> list[AsyncMPClient]:
        """The clients of all engines, started ones included."""
        return [keeper.engine for keeper in self._keepers.values()]

    async def keep(self) -> str:
        """Keep alive the engines that are there now; why there is none any more, once all budgets are spent."""
        self._api.is_engine_kept = self._max_restarts > 0
        self._api.engine.llm.losses.may_blame = self._may_blame
        for facts in self.client.engines:
            self._keepers[facts.engine_index].begin(facts)
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks = [asyncio.ensure_future(self._keep(index, over)) for index in self._keepers]
        tasks.append(asyncio.ensure_future(self._wait_unread(over)))
        try:
            return await over
        finally:
            self._api.engine.llm.losses.may_blame = lambda engine_index, cause: False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, engine_index: int, over: "asyncio.Future[str]") -> None:
        keeper, seat = self._keepers[engine_index], self._seats[engine_index]
        while not over.done():
            cause = await keeper.keep()
            seat.give_up(keeper.given_up(engine_index))
            if self._api.engines_given_up.issuperset(self._keepers):
                self._api.is_engine_kept = False
                if not over.done():
                    over.set_result(cause)
                return
            logger.error("%s is given up for now, the others go on: %s", seat.name, cause)
            await keeper.clear()
            await self._rest(keeper)

    async def _wait_unread(self, over: "asyncio.Future[str]") -> None:
        """Another engine is of no use where nobody reads what it says."""
        cause = await self._api.engine.llm.wait_unread()
        self._api.is_engine_kept = False
        if not over.done():
            over.set_result(cause)

    async def _rest(self, keeper: EngineKeeper[AsyncMPClient]) -> None:
        """Return once another could be started, or never."""
        while True:
            await asyncio.sleep(REST_SECONDS)
            if self._max_restarts and await keeper.revive():
                return

    def _may_blame(self, engine_index: int, cause: str) -> bool:
        return self._keepers[engine_index].is_its_own(cause)
