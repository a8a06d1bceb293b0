"""RestartBudget: how often, and after which pause, an engine that died is started again."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

WINDOW_SECONDS = 60.0
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0


class _Death(NamedTuple):
    """`served_seconds` is how long engines had served in all by then, `died_at` seconds of the clock."""

    served_seconds: float
    died_at: float
    was_ready: bool


class RestartBudget:
    """So many restarts within a minute in which engines serve, and so many starts in a row that fail.

    The time in which none serves does not count: one that takes long to load and dies of its first step would be
    loaded for ever. The first restart is at once; each further one within the minute waits twice as long as the
    one before it.
    """

    def __init__(
        self, max_restarts: int, clock: Callable[[], float] = time.monotonic, what: str = "the engine"
    ) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._what = what
        self._served_seconds = 0.0
        self._deaths: deque[_Death] = deque(maxlen=max_restarts + 1)
        self._num_failed_starts = 0

    def died(self, served_seconds: float) -> float | None:
        """An engine died that had been ready for so long: the seconds to wait, None when no more is started."""
        self._served_seconds += served_seconds
        self._num_failed_starts = 0
        return self._count(was_ready=True)

    def failed_to_start(self) -> float | None:
        """As `died`, of an engine that never was ready."""
        self._num_failed_starts += 1
        return self._count(was_ready=False)

    def says(self, cause: str) -> str:
        """Why no more is started, in one line, with the cause of the last death."""
        if not self.max_restarts:
            return f"{self._what} died: {cause}"
        if self._num_failed_starts:
            return (
                f"{self._what} died and could not be started again ({self._num_failed_starts} attempts): {cause}"
            )
        num_deaths = sum(death.was_ready for death in self._deaths)
        num_failed = len(self._deaths) - num_deaths
        failed = f" and failed to start {num_failed} times" if num_failed else ""
        seconds = self._deaths[-1].died_at - self._deaths[0].died_at
        return (
            f"{self._what} died {num_deaths} times{failed} in {seconds:.0f} s, "
            f"and --engine-restarts allows {self.max_restarts} restarts in {WINDOW_SECONDS:g} s of serving; "
            f"the last time: {cause}"
        )

    def _count(self, was_ready: bool) -> float | None:
        while self._deaths and self._deaths[0].served_seconds < self._served_seconds - WINDOW_SECONDS:
            self._deaths.popleft()
        self._deaths.append(_Death(self._served_seconds, self._clock(), was_ready))
        if len(self._deaths) > self.max_restarts or self._num_failed_starts >= max(self.max_restarts, 1):
            return None
        num_before = len(self._deaths) - 1
        return min(FIRST_WAIT_SECONDS * 2 ** (num_before - 1), LONGEST_WAIT_SECONDS) if num_before else 0.0
