"""ProcessReader: what the kernel tells of a process, read from /proc."""

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

_STATE, _USER_TICKS, _SYSTEM_TICKS, _NUM_THREADS, _STARTED, _VIRTUAL, _RESIDENT = 0, 11, 12, 17, 19, 20, 21
"""Places in /proc/PID/stat, counted from the field after the command."""

_DEAD = "ZX"


class ProcessNumbers(NamedTuple):
    """One process. `started_ticks` are since boot: with the pid they name it for good.

    `num_fds` is 0 where that may not be known.
    """

    pid: int
    started_ticks: int
    cpu_seconds: float
    virtual_bytes: int
    resident_bytes: int
    num_threads: int
    num_fds: int


class ProcessReader:
    """Reads processes of this host."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._tick_seconds = 1 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def read(self, pid: int) -> ProcessNumbers | None:
        """A live process, None for one that is gone or only waits to be reaped, or cannot be read now."""
        try:
            fields = self._fields(pid)
            return None if fields[_STATE] in _DEAD else self._numbers(pid, fields)
        except (OSError, ValueError, IndexError):
            return None

    def is_gone(self, pid: int) -> bool:
        """Whether there is certainly no such process any more; one that cannot be read may well live."""
        try:
            return self._fields(pid)[_STATE] in _DEAD
        except (FileNotFoundError, ProcessLookupError):
            return True
        except (OSError, ValueError, IndexError):
            return False

    def state_of(self, pid: int) -> str:
        """The kernel's letter for what the process does (R runs, S sleeps, T is stopped, …); empty if unknown."""
        try:
            return self._fields(pid)[_STATE]
        except (OSError, ValueError, IndexError):
            return ""

    def catches(self, pid: int, number: int) -> bool:
        """Whether the process has a handler for this signal; False if that is not known."""
        try:
            lines = (self._proc / str(pid) / "status").read_text().splitlines()
            (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
        except (OSError, ValueError, IndexError):
            return False
        return bool(mask >> (number - 1) & 1)

    def max_fds(self, pid: int) -> int:
        """Most files the process may have open; 0 where that is not known or unlimited."""
        try:
            limits = (self._proc / str(pid) / "limits").read_text()
            (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
            return int(line.split()[3])
        except (OSError, ValueError, IndexError):
            return 0

    def started_at(self, numbers: ProcessNumbers) -> float:
        """When the process began, in seconds since 1970; 0 where that is not known."""
        try:
            lines = (self._proc / "stat").read_text().splitlines()
            (booted_at,) = [float(line.split()[1]) for line in lines if line.startswith("btime")]
        except (OSError, ValueError, IndexError):
            return 0.0
        return booted_at + numbers.started_ticks * self._tick_seconds

    def _fields(self, pid: int) -> list[str]:
        return (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()

    def _num_fds(self, pid: int) -> int:
        try:
            return len(list((self._proc / str(pid) / "fd").iterdir()))
        except OSError:
            return 0

    def _numbers(self, pid: int, fields: list[str]) -> ProcessNumbers:
        return ProcessNumbers(
            pid=pid,
            started_ticks=int(fields[_STARTED]),
            cpu_seconds=(int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) * self._tick_seconds,
            virtual_bytes=int(fields[_VIRTUAL]),
            resident_bytes=int(fields[_RESIDENT]) * self._page_bytes,
            num_threads=int(fields[_NUM_THREADS]),
            num_fds=self._num_fds(pid),
        )
