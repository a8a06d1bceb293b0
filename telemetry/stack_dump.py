"""StackDump: has this process's Python stacks written into the run directory when asked, and by its own crash."""

import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from vllm_obs.telemetry.stack_answer import StackAnswer

STACK_SIGNAL = signal.SIGUSR1
"""Nothing else here uses it. One that has not registered yet would die of it, so look before sending."""
STACKS_SUFFIX = ".stacks"
FAULT_SUFFIX = ".fault"
MAX_FAULT_BYTES = 256 * 1024
"""What earlier processes of the same title have left stays up to this size: who tells of their end reads it."""

_logger = logging.getLogger(__name__)


class StackDump:
    """The registration of one process; at most one at a time, made in its main thread.

    From then on the stacks of all threads are appended to TITLE.stacks when it is asked for them (StackAnswer),
    and by STACK_SIGNAL. The signal is for a process that is stuck in C with the interpreter's lock held: in one
    that runs, frames change while the handler reads them, which may crash it. A SIGSEGV, SIGABRT, SIGBUS, SIGFPE
    or SIGILL leaves the stack of the thread that crashed in TITLE.fault, and no other: those still run. The files
    hold places in code only: no values, no arguments. A system call that the signal comes upon goes on.
    """

    def __init__(self, run_dir: Path, title: str) -> None:
        self._stacks_fd = _open(run_dir / f"{title}{STACKS_SUFFIX}", max_bytes=0)
        try:
            self._fault_fd = _open(run_dir / f"{title}{FAULT_SUFFIX}", MAX_FAULT_BYTES)
        except OSError:
            os.close(self._stacks_fd)
            raise
        faulthandler.register(STACK_SIGNAL, self._stacks_fd, all_threads=True, chain=False)
        self._is_enabled = not faulthandler.is_enabled()
        if self._is_enabled:  # else somebody chose another place, such as by PYTHONFAULTHANDLER
            faulthandler.enable(self._fault_fd, all_threads=False)
        self._answer = _answer(run_dir, title, self._stacks_fd)

    def close(self) -> None:
        """Take the registration back; the files stay."""
        if self._answer is not None:
            self._answer.close()
        faulthandler.unregister(STACK_SIGNAL)
        if self._is_enabled:
            faulthandler.disable()
        for fd in (self._stacks_fd, self._fault_fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def register_stack_dump(run_dir: str | Path, title: str) -> StackDump | None:
    """A StackDump; None, since telemetry may fail and serving may not, where there is no directory or no room."""
    if not run_dir:
        return None
    try:
        return StackDump(Path(run_dir), title)
    except (OSError, RuntimeError, ValueError) as error:
        _logger.warning("the stacks of this process cannot be taken: %s", error)
        return None


@contextlib.contextmanager
def dumps_stacks(run_dir: Path, title: str) -> Iterator[None]:
    """A StackDump for the length of a `with` block."""
    dump = register_stack_dump(run_dir, title)
    try:
        yield
    finally:
        if dump is not None:
            dump.close()


def _answer(run_dir: Path, title: str, fd: int) -> StackAnswer | None:
    """None where there can be no named pipe; crashes are traced all the same."""
    try:
        return StackAnswer(run_dir, title, fd)
    except (OSError, RuntimeError) as error:
        _logger.warning("this process cannot be asked for its stacks: %s", error)
        return None


def _open(path: Path, max_bytes: int) -> int:
    """Opened to append: whoever reads it may cut it to nothing at any time."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    if os.fstat(fd).st_size > max_bytes:
        os.ftruncate(fd, 0)
    return fd
