"""ProcessHandle: a hold on a process that is nobody's child here, by which to see that it ended, and how."""

import contextlib
import fcntl
import os
import select
import struct
from pathlib import Path

PROC = Path("/proc")

_INFO = struct.Struct("=QQ11Ii")
"""The kernel's pidfd_info, first version: mask, control group, ids of the process and of users, wait status."""
_INFO_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
"""PIDFD_GET_INFO with the size of what is read; Linux 6.15 and newer keep the wait status of what was reaped."""


class ProcessHandle:
    """Opened while the process lives, so that its pid cannot come to mean another. OSError if it is gone."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.pid = pid
        self._proc = proc
        self._fd = os.pidfd_open(pid)

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it ended within that time."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout_seconds * 1e3))

    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it lives and where the kernel does not tell.

        While it has not been waited for, /proc tells it; afterwards its pidfd does.
        """
        if not self.wait(0):
            return None
        # Asked twice: it may be reaped between the first two questions.
        for ask in (self._reaped_status, self._zombie_status, self._reaped_status):
            if (status := ask()) is not None:
                return os.waitstatus_to_exitcode(status)
        return None

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reaped_status(self) -> int | None:
        info = bytearray(_INFO.size)
        _INFO.pack_into(info, 0, _INFO_EXIT, *[0] * 13)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._fd, _GET_INFO, info)
            mask, *_, status = _INFO.unpack(info)
            return int(status) if mask & _INFO_EXIT else None
        return None

    def _zombie_status(self) -> int | None:
        try:
            # The name in brackets may hold anything.
            fields = (self._proc / str(self.pid) / "stat").read_text().rpartition(")")[2].split()
            return int(fields[-1]) if fields[0] in "ZX" else None
        except (OSError, ValueError, IndexError):
            return None
