"""What strangers say at a ZeroMQ socket, byte by byte, and whether they are cut off."""

import contextlib
import socket
import time
from collections.abc import Iterator

_SIGNATURE = b"\xff" + b"\x00" * 7 + b"\x01\x7f"


def greeting(mechanism: bytes, version: bytes = b"\x03\x00") -> bytes:
    """The 64 bytes with which a peer of ZMTP 3 begins."""
    return _SIGNATURE + version + mechanism.ljust(20, b"\x00") + b"\x00" * 32


SPEECHES: dict[str, bytes] = {
    "nothing": b"",
    "half a greeting": _SIGNATURE[:6],
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    "zeros": bytes(300),
    "random": bytes((number * 167 + 13) % 256 for number in range(500)),
    "ZMTP 1.0": b"\x01\x00" + b"\x06\x00hello" * 3,
    "ZMTP 2.0": _SIGNATURE + b"\x01\x08" + b"\x00\x00" + b"\x00\x05hello",
    "ZMTP 9": greeting(b"NULL", b"\x09\x00"),
    "PLAIN": greeting(b"PLAIN") + b"\x04\x10\x05HELLO\x04user\x04pass",
    "CURVE": greeting(b"CURVE"),
    "no mechanism": greeting(b""),
    "greeting, then silence": greeting(b"NULL"),
    "greeting, then garbage": greeting(b"NULL") + b"\x04\xff" + bytes(300),
    "a command of 4 G": greeting(b"NULL") + b"\x06\x00\x00\x00\x01\x00\x00\x00\x00",
}


@contextlib.contextmanager
def strangers_at(path: str, speeches: list[bytes], seconds: float) -> Iterator[list[socket.socket]]:
    """One connection to a Unix-domain socket for each speech, which it has been told."""
    connections = [socket.socket(socket.AF_UNIX) for _ in speeches]
    try:
        for connection, speech in zip(connections, speeches, strict=True):
            connection.settimeout(seconds)
            _connect(connection, path, seconds)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(speech)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def _connect(connection: socket.socket, path: str, seconds: float) -> None:
    """Connect, waiting for room in the queue of those that have not been let in or turned away yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)


def seconds_until_cut_off(connections: list[socket.socket]) -> float:
    """How long the other side took to close all of them. TimeoutError where it does not."""
    begun = time.monotonic()
    for connection in connections:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while connection.recv(4096):
                pass
    return time.monotonic() - begun
