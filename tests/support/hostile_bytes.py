"""Hostile bytes on a connection of their own: too large, of two meanings, no HTTP, or half and then silence."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hostile_exchange import KEY, Reply
from hostile_routes import TEXT, merged

HOST = b"host: x\r\n"
KEYED = b"authorization: Bearer " + KEY.encode() + b"\r\ncontent-type: application/json\r\n"
GET = b"GET /livez HTTP/1.1\r\n" + HOST
POST = b"POST " + TEXT.encode() + b" HTTP/1.1\r\n" + HOST + KEYED
BODY = merged(TEXT, {})
CHUNKED = b"transfer-encoding: chunked\r\n"
END = b"\r\n"
MIB = 1 << 20
SILENT_SECONDS = 3 * 30.0


@dataclass(frozen=True)
class Sent:
    """What is sent, and the status and reason of the only reply, after which the connection is closed."""

    row: str
    content: bytes
    status: int = 400
    reason: str = "invalid_http"


def sent_bytes() -> Iterator[Sent]:
    """H18 and H27 to H29."""
    yield Sent("H18", POST + CHUNKED + END + (b"100000\r\n" + b" " * MIB + END) * 34, 413, "too_large")
    for size in (200_000, 4_000_000):
        yield Sent("H27", GET + b"x: " + b"y" * size + END * 2, 431, "too_large")
    yield Sent("H27", GET + b"a: b\r\n" * 5_000 + END, 431, "too_large")
    yield Sent("H27", b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\n" + HOST + END, 414, "too_large")
    for lengths in (b"5\r\ncontent-length: 6", b"-5", b"0x5"):
        yield Sent("H28", POST + b"content-length: " + lengths + END * 2 + b"abcdef")
    yield Sent("H28", POST + b"content-length: 5\r\n" + CHUNKED + END + b"0\r\n\r\n")
    yield Sent("H28", POST + CHUNKED + END + b"zz\r\n")
    yield Sent("H28", b"GET /livez HTTP/1.1\nhost: x\n\n")
    yield Sent("H28", GET + b"x: y\r\n folded\r\n\r\n")
    tls = b"\x16\x03\x01\x02\x00\x01" + bytes(range(256))
    for garbage in (tls, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(range(256)) * 4):
        yield Sent("H29", garbage)


def only_reply(port: int, content: bytes) -> Reply:
    """The one reply to that, once the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), SILENT_SECONDS) as connection:
        begun_at = time.monotonic()
        with contextlib.suppress(ConnectionError):  # it need not be read to the end
            connection.sendall(content)
        return reply_in(read_all(connection), time.monotonic() - begun_at)


def read_all(connection: socket.socket) -> bytes:
    """All that comes until it is closed."""
    data = b""
    while chunk := connection.recv(MIB):
        data += chunk
    return data


def reply_in(data: bytes, seconds: float = 0.0) -> Reply:
    """The reply that this is; fails where it is more or less than one."""
    head, _, content = data.partition(END * 2)
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert headers["connection"] == "close", head
    assert len(content) == int(headers["content-length"]), data[:500]
    return Reply(int(first.split()[1]), headers, content, seconds)


class HalfSaid:
    """A connection on which something is sent and then nothing; what came of it is known once it is closed."""

    def __init__(self, port: int, content: bytes) -> None:
        self.data = b""
        self.seconds = 0.0
        self._connection = socket.create_connection(("127.0.0.1", port), SILENT_SECONDS)
        self._connection.sendall(content)
        self._begun_at = time.monotonic()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        with self._connection, contextlib.suppress(ConnectionError):
            self.data = read_all(self._connection)
            self.seconds = time.monotonic() - self._begun_at

    def close(self) -> None:
        """Wait until the server has closed it."""
        self._thread.join(SILENT_SECONDS)
        assert not self._thread.is_alive()
