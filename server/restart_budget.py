"""RestartBudget: how often, and after which pause, an engine that died is started again."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0


class RestartBudget:
    """So many restarts within a minute, and so many starts in a row that fail, however long they take.

    The first restart is at once; each further one within the minute waits twice as long as the one before it.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=max_restarts + 1)
        self._num_failed_starts = 0

    @property
    def num_deaths(self) -> int:
        """Deaths within the last minute, one that is being judged included."""
        return len(self._deaths)

    def died(self, was_ready: bool = True) -> float | None:
        """An engine died, or did not start again: the seconds to wait, None when no more is to be started."""
        now = self._clock()
        while self._deaths and self._deaths[0] < now - WINDOW_SECONDS:
            self._deaths.popleft()
        self._deaths.append(now)
        self._num_failed_starts = 0 if was_ready else self._num_failed_starts + 1
        if len(self._deaths) > self.max_restarts or self._num_failed_starts >= max(self.max_restarts, 1):
            return None
        num_before = len(self._deaths) - 1
        return min(FIRST_WAIT_SECONDS * 2 ** (num_before - 1), LONGEST_WAIT_SECONDS) if num_before else 0.0

    def says(self, cause: str) -> str:
        """Why no more is started, in one line, with the cause of the last death."""
        if not self.max_restarts:
            return f"the engine died: {cause}"
        seconds = self._deaths[-1] - self._deaths[0]
        if len(self._deaths) <= self.max_restarts:
            return f"the engine died and could not be started again ({self._num_failed_starts} attempts): {cause}"
        return (
            f"the engine died {len(self._deaths)} times in {seconds:.0f} s, and --engine-restarts allows "
            f"{self.max_restarts} restarts in {WINDOW_SECONDS:g} s; the last time: {cause}"
        )
