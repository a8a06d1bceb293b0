"""Console: what a process says on stdout and stderr; nobody waits for a reader, and a closed end harms nobody."""

import contextlib
import logging
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from vllm_obs.telemetry.unwaiting import MAX_PIECE_BYTES, unwaiting

PATIENCE_SECONDS = 0.1
"""How long one entry waits for a reader that takes nothing, if the entry before it found one."""
ENTRY_SECONDS = 0.5
"""How long it waits in all for one that takes a little now and then."""


class Console:
    """Whole entries for one of the standard streams. Safe to use from several threads.

    A write to a pipe that is full waits for ever, and whoever logs with it: an event loop, a scheduler. So what
    finds no room is left out, and how much it was is said before the next entry that does.
    """

    def __init__(self, stream: Callable[[], TextIO | None]) -> None:
        """`stream` gives the one that is in use now, None where there is none."""
        self._stream = stream
        self._lock = threading.Lock()
        self._num_left_out = 0
        self._is_in_a_line = False

    def say(self, text: str) -> None:
        """Write the text and a newline, now. Never raises."""
        stream = self._stream()
        if stream is None:
            return
        with self._lock:
            has_reader = not self._num_left_out or self._say_what_is_missing(stream)
            if not (has_reader and self._put(stream, text, PATIENCE_SECONDS)):
                self._num_left_out += 1

    def _say_what_is_missing(self, stream: TextIO) -> bool:
        told = f"vllm-obs: {self._num_left_out} entries were left out here, which nobody read"
        is_told = self._put(stream, told, 0.0)
        self._num_left_out = 0 if is_told else self._num_left_out
        return is_told

    def _put(self, stream: TextIO, text: str, patience_seconds: float) -> bool:
        """Whether all of it was written, in a line of its own: one that was cut ends before it."""
        whole = f"\n{text}\n" if self._is_in_a_line else f"{text}\n"
        num_left, num_bytes = _write(stream, whole, patience_seconds)
        if num_left < num_bytes:
            self._is_in_a_line = num_left > 0
        return not num_left


STDOUT, STDERR = Console(lambda: sys.stdout), Console(lambda: sys.stderr)


def tell(text: str) -> None:
    """Tell people something in one line on stderr, under our name."""
    STDERR.say(" ".join(["vllm-obs:", *text.split()]))


class ConsoleHandler(logging.Handler):
    """Log lines for a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
        else:
            self._console.say(text)


def _write(stream: TextIO, text: str, patience_seconds: float) -> tuple[int, int]:
    """How many bytes found no room, and how many there were."""
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    try:
        stream.flush()
        fd = stream.fileno()
    except (OSError, ValueError):
        return (0 if _write_plainly(stream, text) else len(data)), len(data)
    rest = data
    with contextlib.suppress(OSError), unwaiting(fd) as write:
        until = time.monotonic() + ENTRY_SECONDS
        while rest and _has_room(fd, min(patience_seconds, until - time.monotonic())):
            with contextlib.suppress(BlockingIOError):  # somebody else has filled it in between
                rest = rest[write(rest[:MAX_PIECE_BYTES]) :]
    return len(rest), len(data)


def _has_room(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return seconds >= 0 and any(events & select.POLLOUT for _, events in poll.poll(seconds * 1e3))


def _write_plainly(stream: TextIO, text: str) -> bool:
    """To what is no file."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        return False
    return True
