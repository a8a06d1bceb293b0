"""ObserverPipe: the Observer's side of the two pipes to its owner, with the framing of `engine/child_pipe.py`."""

import contextlib
import os
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

CONFIGURATION = "CONFIGURATION"
READY = "READY"
FAILED = "FAILED"
STOP = "STOP"
ALIVE = "ALIVE"
"""Once a second: the loop goes round. An Observer that does not say it for long is killed by its owner."""
TELEMETRY = "TELEMETRY"
"""An order for the API server: detail_level and sample_rate. It obeys, and records what is in force."""
PROFILE = "PROFILE"
"""Another: profile, kind, seconds and steps. Whoever takes part records that it did, and how it ended."""

MAX_MESSAGE_BYTES = 16 << 20
_LENGTH = struct.Struct("<I")


class PipeError(Exception):
    """What came through a pipe is no message of this protocol, or the pipe ended before it was whole."""


class Envelope(NamedTuple):
    """The first message: who this process is to be. `spawned_at` is monotonic ns in the owner."""

    title: str
    spawned_at: int
    configuration: dict[str, Any]


class ObserverPipe:
    """Reads the configuration, then watches for the order to end or for the owner's death.

    Unlike an engine the Observer does not die at once with its owner: it drains what was recorded last first.
    Raises PipeError when there is no configuration.
    """

    def __init__(self, orders_fd: int, status_fd: int) -> None:
        for fd in (orders_fd, status_fd):
            os.set_inheritable(fd, False)
        self._orders_fd = orders_fd
        self._status_fd = status_fd
        self.is_owner_gone = False
        """Known once `watch` has called; False too where the end was ordered."""
        self.envelope = _envelope(read_message(orders_fd))

    def say(self, kind: str, payload: Any = None) -> None:
        """Send the owner one message of plain values; an owner that is gone needs none."""
        body: bytes = msgpack.packb([kind, payload])
        unsent = memoryview(_LENGTH.pack(len(body)) + body)
        with contextlib.suppress(OSError):
            while unsent:
                unsent = unsent[os.write(self._status_fd, unsent) :]

    def watch(self, on_end: Callable[[], None]) -> threading.Thread:
        """Call `on_end()` once, from another thread, at the order to end or at the end of the pipe."""
        thread = threading.Thread(target=self._watch, args=(on_end,), name="owner watch", daemon=True)
        thread.start()
        return thread

    def _watch(self, on_end: Callable[[], None]) -> None:
        kind = ""
        while kind != STOP:
            try:
                message = read_message(self._orders_fd)
            except (OSError, PipeError):
                break
            if message is None:
                break
            kind = message[0]
        self.is_owner_gone = kind != STOP
        on_end()


def read_message(fd: int) -> tuple[str, Any] | None:
    """The next message, waiting for it; None at the end of the pipe, PipeError for what is no message."""
    head = _read_exactly(fd, _LENGTH.size)
    if head is None:
        return None
    (num_bytes,) = _LENGTH.unpack(head)
    if num_bytes > MAX_MESSAGE_BYTES:
        raise PipeError(f"a message of {num_bytes} bytes; the limit is {MAX_MESSAGE_BYTES}")
    body = _read_exactly(fd, num_bytes)
    if body is None:
        return None
    try:
        kind, payload = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise PipeError(f"{num_bytes} bytes are not [kind, payload]: {error}") from None
    return str(kind), payload


def _read_exactly(fd: int, num_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    while num_bytes:
        part = os.read(fd, num_bytes)
        if not part:
            return None
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _envelope(message: tuple[str, Any] | None) -> Envelope:
    if message is None or message[0] != CONFIGURATION or not isinstance(message[1], dict):
        raise PipeError("the owner sent no configuration")
    envelope = message[1]
    try:
        return Envelope(str(envelope["title"]), int(envelope["spawned_at"]), dict(envelope["configuration"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PipeError(f"the owner's configuration is not one: {error!r}") from None
