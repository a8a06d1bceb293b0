"""Processes that end with pytest, also where it is killed: a watcher that nobody kills holds their pidfds."""

import atexit
import functools
import os
import subprocess
import sys
from typing import IO, TypeVar

T = TypeVar("T", str, bytes)

_WATCHER = """
import os, select, signal, sys
if os.fork():
    os._exit(0)
os.setsid()
fds = []
for line in sys.stdin:
    gone = set(select.select(fds, [], [], 0)[0])
    for fd in gone:
        os.close(fd)
    fds = [fd for fd in fds if fd not in gone]
    try:
        fds.append(os.pidfd_open(int(line)))
    except OSError:
        pass
    print(flush=True)
for fd in fds:
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass
"""


def watch_pytest() -> None:
    """Start the watcher, so that no test finds it among what it has opened itself."""
    _watcher(os.getpid())


def ends_with_pytest(process: "subprocess.Popen[T]") -> "subprocess.Popen[T]":
    """The same process, which from now on is killed once this one is gone, however it went."""
    orders, answers = _watcher(os.getpid())
    orders.write(f"{process.pid}\n")
    orders.flush()
    answers.readline()
    return process


@functools.cache
def _watcher(pid: int) -> tuple[IO[str], IO[str]]:
    """Its pipes. It is nobody's child, so that tests may count theirs; the end of its input is our end."""
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    watcher.wait(20)
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    atexit.register(watcher.stdout.close)
    atexit.register(watcher.stdin.close)
    return watcher.stdin, watcher.stdout
