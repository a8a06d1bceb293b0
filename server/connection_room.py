"""ConnectionRoom: how many connections a server may have, and which of them wait for their client."""

import os
import resource
import time
from pathlib import Path
from typing import Generic, TypeVar

C = TypeVar("C")

NUM_SPARE_FILES = 16
"""Of the files a process may open, so many are kept from connections: for logs, rings and children."""
COUNT_EVERY_NS = 1_000_000_000
OPEN_FILES = Path("/proc/self/fd")


class ConnectionRoom(Generic[C]):
    """`waiting` are the connections that wait for their client, longest first."""

    def __init__(self, max_num_connections: int) -> None:
        self.waiting: dict[C, None] = {}
        self._max_num_connections = max_num_connections
        self._num_other_files = 0
        self._counted_at = 0

    def waits(self, connection: C) -> None:
        """From now on it is the turn of this connection's client."""
        self.waiting.pop(connection, None)
        self.waiting[connection] = None

    def is_busy(self, connection: C) -> None:
        """Its client waits for us, or it is closed."""
        self.waiting.pop(connection, None)

    def is_enough_for(self, num_connections: int) -> bool:
        """Whether there may be so many, all that are open counted."""
        if num_connections > self._max_num_connections:
            return False
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most_files == resource.RLIM_INFINITY:
            return True
        if num_connections > most_files // 4 or most_files < 4 * NUM_SPARE_FILES + num_connections:
            self._count(num_connections)
        return self._num_other_files + num_connections <= most_files - NUM_SPARE_FILES

    def _count(self, num_connections: int) -> None:
        """How many files are open for something else; once a second, and only where that may matter."""
        now = time.monotonic_ns()
        if now - self._counted_at < COUNT_EVERY_NS:
            return
        self._counted_at = now
        try:
            num_files = len(os.listdir(OPEN_FILES)) - 1  # noqa: PTH208 - thousands of names, no paths
            self._num_other_files = max(0, num_files - num_connections)
        except OSError:  # there is none left to look with
            self._num_other_files = max(self._num_other_files, NUM_SPARE_FILES)
