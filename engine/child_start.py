"""A child process before it is anybody: an interpreter that loads its module and waits for its configuration."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import vllm_obs
from vllm_obs.engine.errors import StartupError

_END_SECONDS = 5.0
_HELD_SIGNALS = {signal.SIGINT, signal.SIGTERM}


class Started(NamedTuple):
    """A process of `module` that waits for its configuration; `started_at` is monotonic ns."""

    module: str
    process: "subprocess.Popen[bytes]"
    orders_fd: int
    status_fd: int
    started_at: int

    def discard(self) -> None:
        """Nobody needs it after all: end it."""
        os.close(self.orders_fd)
        os.close(self.status_fd)
        self.process.kill()
        self.process.wait(_END_SECONDS)


def start(module: str, pass_fds: Sequence[int] = (), title: str = "", words: Sequence[str] = ()) -> Started:
    """The process alone. It is given `words` after its pipes; `title` is what an error calls it. StartupError."""
    orders_read, orders_write = os.pipe()
    status_read, status_write = os.pipe()
    started_at = time.monotonic_ns()
    try:
        inherited = [orders_read, status_write, *pass_fds]
        process = _start(module, inherited, [str(orders_read), str(status_write), *words])
    except OSError as error:
        os.close(orders_write)
        os.close(status_read)
        raise StartupError(f"cannot start {title or module}: {error.strerror}") from None
    finally:
        os.close(orders_read)
        os.close(status_write)
    return Started(module, process, orders_write, status_read, started_at)


def _start(module: str, inherited: Sequence[int], arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-m", module, *arguments]
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_SIGNALS)
    try:
        return subprocess.Popen(command, pass_fds=inherited, stdin=subprocess.DEVNULL, env=_child_environment())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _child_environment() -> dict[str, str]:
    package_root = str(Path(vllm_obs.__path__[0]).parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
