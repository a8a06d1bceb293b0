"""The messages on the two pipes between a child and its owner: a length, then msgpack [kind, payload]."""

import os
import select
import struct
from typing import Any

import msgpack

READY = "READY"
FAILED = "FAILED"
STOP = "STOP"
CLIENT = "CLIENT"
"""The order that a client of an engine is gone, and where the one in its place listens."""
CONFIGURATION = "CONFIGURATION"

MAX_MESSAGE_BYTES = 16 << 20
_LENGTH = struct.Struct("<I")


def write_message(fd: int, kind: str, payload: Any) -> None:
    """Write one message; OSError when the other side is gone, ValueError when it is too large."""
    body: bytes = msgpack.packb([kind, payload])
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    unsent = memoryview(_LENGTH.pack(len(body)) + body)
    while unsent:
        unsent = unsent[os.write(fd, unsent) :]


def write_order(fd: int, kind: str, payload: Any) -> None:
    """Write one message at once and whole to a pipe that does not block; BlockingIOError when it is full.

    ValueError for one that the kernel would not take in one piece, OSError when the other side is gone.
    """
    body: bytes = msgpack.packb([kind, payload])
    if _LENGTH.size + len(body) > select.PIPE_BUF:
        raise ValueError(f"an order of {len(body)} bytes; the limit is {select.PIPE_BUF - _LENGTH.size}")
    os.write(fd, _LENGTH.pack(len(body)) + body)


def read_message(fd: int) -> tuple[str, Any] | None:
    """The next message, waiting for it; None at the end of the pipe, ValueError for what is no message."""
    head = _read_exactly(fd, _LENGTH.size)
    if head is None:
        return None
    (num_bytes,) = _LENGTH.unpack(head)
    if num_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {num_bytes} bytes; the limit is {MAX_MESSAGE_BYTES}")
    body = _read_exactly(fd, num_bytes)
    if body is None:
        return None
    try:
        message = msgpack.unpackb(body)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not a message: {type(error).__name__}") from None
    if type(message) is not list or len(message) != 2 or type(message[0]) is not str:
        raise ValueError("a message is a list of its kind and its payload")
    return message[0], message[1]


def _read_exactly(fd: int, num_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    while num_bytes:
        part = os.read(fd, num_bytes)
        if not part:
            return None
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
