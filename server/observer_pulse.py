"""Pulse: how long the Observer of a run has given no sign of life, for who kills it and for who asks it."""

from functools import lru_cache
from pathlib import Path

LOOK_SECONDS = 1.0
"""Between two looks; the Observer gives a sign about as often."""
HANG_LOOKS = 10
IDLE_LOOKS = 5
"""One that used no CPU for so long does nothing."""
STOPPED_LOOKS = 2
"""One that a signal has stopped will not go on by itself."""
BUSY_LOOKS = 60
"""One that computes may only be slow: it has the lowest priority of all."""
START_LOOKS = 120
"""Until it is ready; beside an engine that loads that takes a while."""
QUIET_LOOKS = 4
"""Nobody who asks then is answered in time."""
MAX_RUNS = 8


class Pulse:
    """Counts looks since the last sign.

    Looks are counted and not seconds: if this process was stopped itself, the Observer did not hang.
    """

    def __init__(self) -> None:
        self.num_looks = 0
        self.is_ready = False
        self._pid = 0
        self._cpu = 0
        self._num_idle = 0
        self._num_stopped = 0

    @property
    def is_quiet(self) -> bool:
        """Whether a ready Observer is known to hang."""
        return self.is_ready and self.num_looks >= QUIET_LOOKS

    @property
    def quiet_seconds(self) -> float:
        """How long there has been no sign."""
        return self.num_looks * LOOK_SECONDS

    def begin(self, pid: int) -> None:
        """A new Observer, which is not ready yet."""
        self._pid, self._cpu, self._num_idle, self._num_stopped = pid, 0, 0, 0
        self.num_looks, self.is_ready = 0, False

    def sign(self, is_ready: bool = True) -> None:
        """It lives."""
        self.num_looks, self.is_ready = 0, is_ready

    def look(self) -> bool:
        """One more look, LOOK_SECONDS after the last; whether the Observer hangs for good."""
        self.num_looks += 1
        before, self._cpu = self._cpu, cpu_ticks(self._pid)
        self._num_idle = self._num_idle + 1 if self._cpu == before else 0
        self._num_stopped = self._num_stopped + 1 if is_stopped(self._pid) else 0
        if self._num_stopped >= STOPPED_LOOKS:
            return True
        if not self.is_ready:
            return self.num_looks >= START_LOOKS
        return self.num_looks >= (HANG_LOOKS if self._num_idle >= IDLE_LOOKS else BUSY_LOOKS)


@lru_cache(maxsize=MAX_RUNS)
def pulse_of(run_dir: str) -> Pulse:
    """The one Pulse of a run in this process: of its Observer's owner and of those who ask."""
    return Pulse()


def cpu_ticks(pid: int) -> int:
    """The CPU time of a process in clock ticks; 0 if there is none."""
    fields = _stat_of(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; one that a debugger holds for a moment is not meant."""
    return _stat_of(pid)[:1] == ["T"]


def _stat_of(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on; nothing if there is none."""
    try:
        # The name in brackets may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
