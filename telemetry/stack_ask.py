"""StackQuestion: how one process is asked for its stacks from another, and how to tell that it is stuck."""

import errno
import os
import signal
import stat
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.process_reader import PROC, ProcessReader
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.stack_answer import ASK_SUFFIX, END_LINE, MAX_TEXT_BYTES, START_LINE, THREAD_COMM
from vllm_obs.telemetry.stack_dump import STACK_SIGNAL, STACKS_SUFFIX

MIN_WAITS = 20
"""So often at least must the thread that answers have waited for the interpreter's lock, 5 ms each, in vain."""
MAX_TASKS = 1024

_STOPPED, _DEAD = "Tt", "ZX"
_ENDED = "it has ended"
_NOT_REGISTERED = "it has not registered for it (it may still be starting)"


class _Signs(NamedTuple):
    """What moves while a process runs Python, and how often its answering thread has waited (-1 if unknown)."""

    written: int
    heartbeat_at: int
    progress: int
    activity_at: int
    num_waits: int


class StackQuestion:
    """One question to one process, which answers into TITLE.stacks. Nothing here blocks."""

    def __init__(self, run_dir: Path, title: str, pid: int) -> None:
        self.title = title
        self.pid = pid
        self.path = run_dir / f"{title}{STACKS_SUFFIX}"
        self._ring = run_dir / f"{title}.ring"
        self._pipe = run_dir / f"{title}{ASK_SUFFIX}"
        self._reader = ProcessReader()
        self._before: _Signs | None = None

    def ask(self) -> str:
        """Empty the file and ask the thread that answers; why not, where it cannot be asked."""
        if why := self._why_not():
            return why
        try:
            os.truncate(self.path, 0)
            self._before = self._signs()
            _write_to_pipe(self._pipe)
        except OSError as error:
            is_absent = error.errno in (errno.ENXIO, errno.ENOENT)
            return _NOT_REGISTERED if is_absent else "it could not be asked"
        return ""

    def answer(self) -> str:
        """Its answer, once that is whole."""
        text, end, _ = self._text().partition(START_LINE)[2].partition(END_LINE)
        return text if end else ""

    def dump(self) -> str:
        """What the signal had written, without the answer of one that has come to itself since."""
        return self._text().partition(START_LINE)[0]

    def _text(self) -> str:
        """What the file holds now."""
        try:
            with self.path.open("rb") as file:
                return file.read(MAX_TEXT_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def is_stuck(self) -> bool:
        """Whether, since it was asked, something has held the interpreter's lock and no Python code has run.

        Then no frame changes, and a signal handler may read them all. Of a process that only has no time on the
        cores this is not so: the thread that answers has hardly run. False if it cannot be known.
        """
        before, now = self._before, self._signs()
        if before is None or now is None or before.num_waits < 0:
            return False
        return before[:-1] == now[:-1] and now.num_waits - before.num_waits >= MIN_WAITS

    def send_signal(self) -> str:
        """Empty the file and send the signal, to a process that is stuck; why not, where that cannot be."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return _ENDED
        try:
            # All looks come after the descriptor is there: whoever still writes the ring then is who gets the
            # signal, and never another process that has been given the number since.
            if why := self._why_not():
                return why
            if not self._reader.catches(self.pid, STACK_SIGNAL):
                return _NOT_REGISTERED
            os.truncate(self.path, 0)
            signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
        except OSError:
            return "it could not be sent a signal"
        finally:
            os.close(pidfd)
        return ""

    def _why_not(self) -> str:
        """Why the process cannot answer; empty if it can be asked."""
        state = self._reader.state_of(self.pid)
        if not self._writes():
            return _ENDED
        if state and state in _STOPPED:
            return "it is stopped by a signal and runs no code"
        if not state or state in _DEAD:
            return _ENDED
        return "" if self.path.exists() else _NOT_REGISTERED

    def _writes(self) -> bool:
        """Whether that process has its ring open now."""
        try:
            with RingReader(self._ring) as ring:
                return ring.header().pid == self.pid and ring.is_writer_alive()
        except (RingError, OSError):
            return False

    def _signs(self) -> _Signs | None:
        try:
            with RingReader(self._ring) as ring:
                header = ring.header()
        except (RingError, OSError):
            return None
        signs = header.reserved, header.heartbeat_at, header.progress, header.activity_at
        return _Signs(*signs, num_waits(self.pid))


def num_waits(pid: int, proc: Path = PROC) -> int:
    """How often the thread of a process that answers has gone to sleep; -1 where that is not known."""
    try:
        for path in sorted((proc / str(pid) / "task").iterdir())[:MAX_TASKS]:
            if (path / "comm").read_text().rstrip("\n") == THREAD_COMM:
                lines = (path / "status").read_text().splitlines()
                (number,) = [int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:")]
                return number
    except (OSError, ValueError, IndexError):
        return -1
    return -1


def _write_to_pipe(path: Path) -> None:
    """One byte; ENXIO if nobody reads there. A pipe that is full has been asked often enough."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise OSError(errno.ENXIO, "not a pipe")
        os.write(fd, b"?")
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
