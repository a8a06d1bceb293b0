"""RefusalNotice: one line in the log when a full queue begins to refuse, and one when it has stopped."""

import logging
from collections.abc import Callable

QUIET_SECONDS = 10.0
"""It has stopped when nobody has been refused for so long: there is no second line before that."""

logger = logging.getLogger(__name__)


class RefusalNotice:
    """Counts the requests that are refused, from the first one until a quiet time. `clock` gives monotonic ns."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._num_refused = 0
        self._first_at = 0
        self._last_at = 0

    def refused(self, why: str) -> None:
        """One more was refused, for which there was no room because of `why`."""
        self._last_at = self._clock()
        self._num_refused += 1
        if self._num_refused == 1:
            self._first_at = self._last_at
            logger.warning("the queue is full (%s): new requests are refused", why)

    def look(self) -> None:
        """The queue has room: say so where nobody has been refused for a while."""
        if self._num_refused and self._clock() - self._last_at >= QUIET_SECONDS * 1e9:
            self.end()

    def end(self) -> None:
        """Say how many were refused, if any."""
        if self._num_refused:
            seconds = (self._last_at - self._first_at) / 1e9
            num_refused, self._num_refused = self._num_refused, 0
            logger.info("the queue refuses no more; %d request(s) were refused in %.1f s", num_refused, seconds)
