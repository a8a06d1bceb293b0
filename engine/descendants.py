"""Descendants: holds on the processes below a child, by which to see that all of them have ended."""

import contextlib
import os
import select
import signal
from pathlib import Path

PROC = Path("/proc")
MAX_DESCENDANTS = 1024


class Descendants:
    """Opened while they live, so that no pid can come to mean another process. They are nobody's children here."""

    def __init__(self, pidfds: list[int]) -> None:
        self._pidfds = pidfds

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> "Descendants":
        """Those that a process has now; none where the kernel does not tell."""
        pidfds: list[int] = []
        for found in descendants(pid, proc):
            with contextlib.suppress(OSError):
                pidfds.append(os.pidfd_open(found))
        return cls(pidfds)

    @property
    def are_gone(self) -> bool:
        """Whether every one of them has ended."""
        return not self._alive()

    def kill(self) -> None:
        """SIGKILL to those that live."""
        for pidfd in self._alive():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of them. Idempotent; afterwards they count as gone."""
        pidfds, self._pidfds = self._pidfds, []
        for pidfd in pidfds:
            os.close(pidfd)

    def _alive(self) -> list[int]:
        poll = select.poll()
        for pidfd in self._pidfds:
            poll.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(0)}
        return [pidfd for pidfd in self._pidfds if pidfd not in ended]


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """The pids of a process's children, and of theirs, a parent before its children."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < MAX_DESCENDANTS:
        children = _children(waiting.pop(0), proc)
        found += children
        waiting += children
    return found[:MAX_DESCENDANTS]


def _children(pid: int, proc: Path) -> list[int]:
    """A child belongs to the thread that started it."""
    found: list[int] = []
    for path in (proc / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found
