"""ConnectionRoom: how many connections a server may have, and which of them wait for their client."""

import logging
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from vllm_obs.server.errors import ApiError

C = TypeVar("C")

logger = logging.getLogger(__name__)

NUM_SPARE_FILES = 16
"""Of the files a process may open, so many are kept from connections: for logs, rings and children."""
NUM_SPARE_CONNECTIONS = 8
"""So many more than the limit are taken for probes and scrapes: half of the spare files."""
COUNT_EVERY_NS = 1_000_000_000
TOLD_EVERY_NS = 10_000_000_000
"""The log is told at most so often that there is no room."""
OPEN_FILES = Path("/proc/self/fd")


class ConnectionRoom(Generic[C]):
    """`waiting` are the connections that wait for their client, longest first; `spare` those over the limit."""

    def __init__(self, max_num_connections: int) -> None:
        self.waiting: dict[C, None] = {}
        self.spare: set[C] = set()
        self.on_closed: Callable[[], None] = lambda: None
        self._max_num_connections = max_num_connections
        self._num_other_files = 0
        self._counted_at = 0
        self._num_untold = 0
        self._told_at: int | None = None

    def waits(self, connection: C) -> None:
        """From now on it is the turn of this connection's client."""
        self.waiting.pop(connection, None)
        self.waiting[connection] = None

    def is_busy(self, connection: C) -> None:
        """Its client waits for us, or it is being closed."""
        self.waiting.pop(connection, None)

    def is_closed(self, connection: C) -> None:
        """It is gone."""
        self.waiting.pop(connection, None)
        self.spare.discard(connection)
        self.on_closed()

    def take_in(self, newest: C) -> C | None:
        """Who gives way to `newest`, which waits already and finds no room; None for nobody.

        It is who waits longest. Where all are being answered `newest` is a spare one, to which only spare ones
        give way: the longest waiting, perhaps itself, where there are too many of them.
        """
        self._tell()
        longest = next((each for each in self.waiting if each not in self.spare and each is not newest), None)
        if longest is not None:
            return longest
        self.spare.add(newest)
        return next(iter(self.waiting)) if len(self.spare) > NUM_SPARE_CONNECTIONS else None

    def is_spare(self, connection: C, num_connections: int) -> bool:
        """Whether it is over the limit still; it is not any more once there is room among those open."""
        if connection in self.spare and self.is_enough_for(num_connections - len(self.spare) + 1):
            self.spare.discard(connection)
        return connection in self.spare

    def is_enough_for(self, num_connections: int) -> bool:
        """Whether there may be so many, all that are open counted but the spare ones."""
        if num_connections > self._max_num_connections:
            return False
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most_files == resource.RLIM_INFINITY:
            return True
        if num_connections > most_files // 4 or most_files < 4 * NUM_SPARE_FILES + num_connections:
            self._count(num_connections)
        return self._num_other_files + num_connections <= most_files - NUM_SPARE_FILES

    def most(self) -> int:
        """How many there may be now: the limit, or what the process's open files leave where that is less."""
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most_files == resource.RLIM_INFINITY:
            return self._max_num_connections
        return max(0, min(self._max_num_connections, most_files - NUM_SPARE_FILES - self._num_other_files))

    def _tell(self) -> None:
        """Say that a new connection found no room, and how many did since that was last said."""
        self._num_untold += 1
        now = time.monotonic_ns()
        if self._told_at is not None and now - self._told_at < TOLD_EVERY_NS:
            return
        logger.warning(
            "no room for %d new connection(s) (at most %d, of %d open files): who waits longest for its client, "
            "or the new one, gives way",
            self._num_untold,
            self._max_num_connections,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        self._told_at, self._num_untold = now, 0

    def _count(self, num_connections: int) -> None:
        """How many files are open for something else; once a second, and only where that may matter."""
        now = time.monotonic_ns()
        if now - self._counted_at < COUNT_EVERY_NS:
            return
        self._counted_at = now
        try:
            num_files = len(os.listdir(OPEN_FILES)) - 1  # noqa: PTH208 - thousands of names, no paths
            self._num_other_files = max(0, num_files - num_connections - len(self.spare))
        except OSError:  # there is none left to look with
            self._num_other_files = max(self._num_other_files, NUM_SPARE_FILES)


def no_room() -> ApiError:
    """What who finds no room is told."""
    return ApiError("the server has no room for more connections", "under_pressure", status=503, closes=True)
