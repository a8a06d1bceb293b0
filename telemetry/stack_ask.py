"""StackQuestion: how one process is asked for its stacks from another, and how to tell that it is stuck."""

import errno
import os
import signal
import stat
import time
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.process_reader import PROC, ProcessReader
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.stack_answer import ASK_SUFFIX, END_LINE, MAX_TEXT_BYTES, START_LINE, THREAD_COMM
from vllm_obs.telemetry.stack_dump import STACK_SIGNAL, STACKS_SUFFIX

MIN_WAITS = 50
"""So often at least must the thread that answers have waited for the interpreter's lock, 5 ms each, in vain."""
MAX_DELAYED_SHARE = 0.1
"""Of that time its threads must together not have waited longer for a core, else somebody may only be slow."""
MAX_TASKS = 1024

_SWITCHES = "voluntary_ctxt_switches:"
_STOPPED, _DEAD = "Tt", "ZX"
_ENDED = "it has ended"
_NOT_REGISTERED = "it has not registered for it (it may still be starting)"


class ThreadWaits(NamedTuple):
    """What the kernel knows of a process's threads.

    `num_waits` is how often the one that answers has gone to sleep, `delay_ns` how long all together were ready to
    run and had no core.
    """

    num_waits: int
    delay_ns: int


class _Signs(NamedTuple):
    """What moves while a process runs Python, and what its threads have waited for by then."""

    moves: tuple[int, ...]
    threads: ThreadWaits
    at: int


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
        """Whether something holds the interpreter's lock and runs no Python code; False if it cannot be known.

        Then no frame changes, and a signal handler may read them all. It has waited for the lock often, and no
        record nor heartbeat was written. A process that only has no time on the cores looks the same, but for its
        threads that are ready to run; after a time in which there were some the next is looked at.
        """
        before, now = self._before, self._signs()
        if before is None or now is None:
            return False
        is_free = now.threads.delay_ns - before.threads.delay_ns <= MAX_DELAYED_SHARE * (now.at - before.at)
        if before.moves != now.moves or not is_free:
            self._before = now
            return False
        return now.threads.num_waits - before.threads.num_waits >= MIN_WAITS

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
        threads = thread_waits(self.pid)
        try:
            with RingReader(self._ring) as ring:
                header = ring.header()
        except (RingError, OSError):
            return None
        moves = header.reserved, header.heartbeat_at, header.progress, header.activity_at
        return None if threads is None else _Signs(moves, threads, time.monotonic_ns())


def thread_waits(pid: int, proc: Path = PROC) -> ThreadWaits | None:
    """None where it cannot be read whole, as of a process without a thread that answers."""
    num_waits, delay_ns = -1, 0
    try:
        for path in sorted((proc / str(pid) / "task").iterdir())[:MAX_TASKS]:
            delay_ns += int((path / "schedstat").read_text().split()[1])
            if (path / "comm").read_text().rstrip("\n") == THREAD_COMM:
                lines = (path / "status").read_text().splitlines()
                (num_waits,) = [int(line.split()[1]) for line in lines if line.startswith(_SWITCHES)]
    except (OSError, ValueError, IndexError):
        return None
    return None if num_waits < 0 else ThreadWaits(num_waits, delay_ns)


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
