"""ApiServers: the API servers of a launcher, each started again when it dies, for as long as its budget lasts."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.frontend.crash_suspects import Suspect
from vllm_obs.engine.old_rings import prune_old_rings
from vllm_obs.server.api_server_place import ApiServerPlace, ServedBy
from vllm_obs.server.crash_judge import CrashJudge
from vllm_obs.server.launcher_messages import BLAMED, ENGINE, SUSPECTS, EngineNews
from vllm_obs.server.phase import Phase
from vllm_obs.server.restart_budget import RestartBudget

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
"""How long an API server may take to be ready once the engines are."""
POLL_SECONDS = 0.01
API_SERVER_RESTARTS = 3
"""At least so often each is started again, also where no engine is to be: the others go on serving."""


class ApiServers:
    """Used on the launcher's event loop. Orders that stay in force are given again to who is started again.

    `forget` is called with the client_index of one that has ended: the engines end what it ran.
    """

    def __init__(self, served_by: ServedBy, num_servers: int, forget: Callable[[int], None]) -> None:
        self.places = [ApiServerPlace(index, served_by, self._ended) for index in range(num_servers)]
        for place in self.places:
            place.on_suspects = partial(self._pass_on, place)
        has_several = served_by.config.parallel.data_parallel_size > 1
        self._judge = CrashJudge(partial(self.order, BLAMED), num_servers, has_several)
        self._served_by = served_by
        self._forget = forget
        max_restarts = max(API_SERVER_RESTARTS, served_by.server.engine_restarts)
        self._budgets = [RestartBudget(max_restarts, what=place.title) for place in self.places]
        self._news: dict[int, EngineNews] = {}
        self._standing: dict[str, Any] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._is_kept = False
        self._is_stopping = False
        self._last: list[ApiServerPlace] = []
        self._given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start them all. StartupError."""
        for place in self.places:
            self._start(place)

    def _start(self, place: ApiServerPlace) -> None:
        place.start()
        for news in self._news.values():
            place.order(ENGINE, news.to_wire())
        for kind, payload in self._standing.items():
            place.order(kind, payload)

    def tell(self, news: EngineNews) -> None:
        """Tell every server what has become of an engine."""
        self._news[news.engine_index] = news
        self.order(ENGINE, news.to_wire())

    def order(self, kind: str, payload: Any = None, stays: bool = False) -> None:
        """Give every server an order; one that `stays` is also for those that are started later."""
        if stays:
            self._standing[kind] = payload
        for place in self.places:
            place.order(kind, payload)

    def order_one(self, kind: str, payload: Any) -> bool:
        """Give the order to one server that serves; whether there is one."""
        place = next((place for place in self.places if place.is_ready), None)
        if place is not None:
            place.order(kind, payload)
        return place is not None

    def _pass_on(self, teller: ApiServerPlace, suspects: list[Suspect]) -> None:
        """What one server suspects the others are to know, and all who of theirs together stands out."""
        for place in self.places:
            if suspects and place is not teller:
                place.order(SUSPECTS, [suspect.digest for suspect in suspects])
        self._judge.heard(teller.client_index, suspects)

    async def ready(self) -> None:
        """Return once all of them serve; ConfigError or StartupError of the first that cannot."""
        timeout_seconds = self._served_by.server.startup_timeout + START_SECONDS
        deadline = time.monotonic() + timeout_seconds
        for place in self.places:
            while not place.is_ready:
                self._require_lives()
                if time.monotonic() >= deadline:
                    raise StartupError(f"{place.title} was not ready within {timeout_seconds:g} s")
                await asyncio.sleep(POLL_SECONDS)
        self._is_kept = True

    def _require_lives(self) -> None:
        for place in self.places:
            place.require_life()

    async def given_up(self) -> str:
        """Why they cannot be kept alive, once that is so."""
        return await asyncio.shield(self._given_up)

    def _ended(self, place: ApiServerPlace) -> None:
        if self._is_kept and not place.was_told:
            self._forget(place.client_index)
        if self._is_stopping or not self._is_kept:  # whoever waits for its READY or its end finds out
            return
        served_seconds = (time.monotonic_ns() - place.ready_at) / 1e9 if place.ready_at else 0.0
        budget = self._budgets[place.client_index]
        wait_seconds = budget.died(served_seconds) if place.ready_at else budget.failed_to_start()
        cause = place.exit_cause
        if wait_seconds is None:
            if not self._given_up.done():
                self._given_up.set_result(budget.says(cause.replace(f"{place.title} ", "it ", 1)))
            return
        logger.error("%s; what it served is cut off, and it is started again", cause)
        task = asyncio.create_task(self._start_again(place, wait_seconds), name=f"restart {place.title}")
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _start_again(self, place: ApiServerPlace, wait_seconds: float) -> None:
        place.close()
        place.life += 1
        prune_old_rings(self._served_by.config.run_dir)
        await asyncio.sleep(wait_seconds)
        if self._is_stopping:
            return
        try:
            self._start(place)
        except (ConfigError, StartupError) as error:
            if not self._given_up.done():
                self._given_up.set_result(str(error))
            return
        child = place.child
        await asyncio.sleep(self._served_by.server.startup_timeout + START_SECONDS)
        if place.child is child and not place.is_ready:
            place.kill("was not ready in time")

    def stop_keeping(self) -> None:
        """Whoever ends from now on stays away."""
        if not self._is_stopping:
            self._last = [place for place in self.places if place.is_ready]
        self._is_stopping = True
        for task in self._restarts:
            task.cancel()

    @property
    def running(self) -> Iterable[ApiServerPlace]:
        """Those whose processes are there."""
        return (place for place in self.places if place.is_running)

    @property
    def are_open(self) -> bool:
        """Whether all that run have told, after their start, what they do."""
        statuses = [place.status for place in self.running]
        are_open = [status is not None and status.phase != Phase.LOADING.value for status in statuses]
        return bool(are_open) and all(are_open)

    @property
    def are_drained(self) -> bool:
        """Whether none has anything left to finish."""
        return all(place.is_drained for place in self.running)

    @property
    def num_open(self) -> int:
        """Requests that are open, as far as is known."""
        return sum(place.status.num_open for place in self.running if place.status is not None)

    def num_sequences(self, engine_index: int) -> int:
        """Sequences that the engine has, as far as is known."""
        told = [place.status.num_sequences for place in self.running if place.status is not None]
        return sum(number for each in told for index, number in each if index == engine_index)

    @property
    def phases(self) -> set[str]:
        """What they are doing."""
        return {place.status.phase for place in self.running if place.status is not None}

    def ask_to_stop(self) -> None:
        """Order all to end."""
        for place in self.running:
            place.ask_to_stop()

    @property
    def have_stopped(self) -> bool:
        """Whether none is running."""
        return not any(place.is_running for place in self.places)

    @property
    def exit_codes(self) -> list[int]:
        """How each ended that served when they were told to stop; negative for a signal.

        What one had that ended before was cut off then, and one that was not ready had nothing.
        """
        return [place.child.exit_code or 0 for place in self._last if place.child is not None]

    def close(self) -> None:
        """End what is left of them, now."""
        for place in self.places:
            place.close()
