"""ThreadBook: the names of this process's threads, and how much of a CPU each has used."""

import threading
import time

MAX_THREADS = 128
"""Threads told apart by name; those over it are all called `(other threads)`."""
MAX_NAME_CHARS = 64
OTHER_THREADS = "(other threads)"

_SCHEDULED_CLOCK_OF_A_THREAD = 6
"""The low bits of such a clock's id, in Linux's interface (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED)."""


class ThreadBook:
    """Knows threads by `threading.get_ident()`, as `sys._current_frames` does."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[str, int]] = {}

    def look_up(self, ident: int) -> tuple[str, int]:
        """(name, kernel's id) of a thread; the id is 0 for one that Python did not start."""
        found = self._threads.get(ident)
        if found is None:
            self._read()
            found = self._threads.setdefault(ident, (f"thread {ident:#x}", 0))
        return found

    def forget(self, ident: int) -> None:
        """It ended: its ident may be another's from now on."""
        self._threads.pop(ident, None)

    def _read(self) -> None:
        """The threads that live now, and no other, so that this never grows."""
        self._threads = {
            thread.ident: (thread.name[:MAX_NAME_CHARS], thread.native_id or 0)
            for thread in threading.enumerate()
            if thread.ident is not None
        }


def cpu_ns_of(tid: int) -> int:
    """The CPU time a thread of this process has used, in ns. OSError when it is gone.

    `pthread_getcpuclockid` would give the same clock, but of a thread that has just ended it reads freed memory.
    """
    return time.clock_gettime_ns((~tid << 3) | _SCHEDULED_CLOCK_OF_A_THREAD)
