"""Many connections, and odd ones: capped, answered in order, never at the cost of who has something to ask."""

import contextlib
import re
import socket
import time
from collections.abc import Iterator

import pytest
from http_app import SocketServer, socket_server

from vllm_obs.engine.frontend import request_stream
from vllm_obs.server.config import Limits, ServerConfig
from vllm_obs.server.connection_room import NUM_SPARE_CONNECTIONS
from vllm_obs.server.public_paths import PROBES, PUBLIC
from vllm_obs.telemetry.records import HttpRequestEnded, RequestEnded

MAX_CONNECTIONS = 20
LIMITS = Limits(
    max_num_connections=MAX_CONNECTIONS,
    max_body_bytes=100_000,
    head_timeout_seconds=30,
    body_timeout_seconds=30,
    keep_alive_seconds=30,
)
LIVE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
HALF_HEAD = b"GET /livez HTTP/1.1\r\nhost: "
HALF_BODY = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
)
STREAM = b'{"prompt":"Hi","max_tokens":2000,"stream":true}'
POST_STREAM = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(STREAM), STREAM)
)


@pytest.fixture(scope="module")
def server() -> Iterator[SocketServer]:
    config = ServerConfig(limits=LIMITS, disable_uvicorn_access_log=True)
    with socket_server(seconds_a_token=0.02, server=config) as running:
        yield running


@pytest.fixture
def opened(server: SocketServer) -> Iterator["Opened"]:
    """Connections that are closed after the test."""
    made = Opened(server)
    yield made
    made.close()


class Opened:
    """Connections to a server."""

    def __init__(self, server: SocketServer) -> None:
        self._server = server
        self.all: list[socket.socket] = []

    def open(self, number: int, sent: bytes = b"") -> list[socket.socket]:
        made = [self._server.connect() for _ in range(number)]
        self.all += made
        for connection in made:
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
        return made

    def close(self) -> None:
        """Close all, and wait until none of their streams is left in the next one's way."""
        for connection in self.all:
            connection.close()
        deadline = time.monotonic() + 5
        while self._server.served.engine.num_running and time.monotonic() < deadline:
            time.sleep(0.01)


def answer(connection: socket.socket, request: bytes = LIVE) -> bytes:
    """What is answered, of a stream its beginning; empty where the connection was closed."""
    received = b""
    with contextlib.suppress(ConnectionError):
        connection.sendall(request)
        while not is_whole(received):
            part = connection.recv(65536)
            received += part
            if not part:
                break
    return received


def is_whole(received: bytes) -> bool:
    """Whether all that its length says is there; headers and body may come one by one."""
    headers, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", headers, re.IGNORECASE)
    return b"\r\n\r\n" in received and len(body) >= (int(length[1]) if length else 0)


def is_open(connection: socket.socket) -> bool:
    """Read what has come, and say whether that was all."""
    connection.settimeout(0.02)
    try:
        while connection.recv(65536):
            pass
        return False
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.settimeout(20)


def num_open(connections: list[socket.socket], expected: int) -> int:
    """How many are open, once it is `expected` or time is up."""
    deadline = time.monotonic() + 5
    while (number := sum(map(is_open, connections))) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return number


@pytest.mark.parametrize(
    "sent", [b"", HALF_HEAD, HALF_BODY, LIVE], ids=["silent", "half head", "half body", "idle"]
)
def test_who_keeps_us_waiting_longest_gives_way(opened: Opened, sent: bytes) -> None:
    waiting = []
    for _ in range(5 * MAX_CONNECTIONS):
        waiting += opened.open(1, sent)
        if sent == LIVE:  # it is not waiting before it is answered
            assert b"200 OK" in waiting[-1].recv(65536)
    newest = opened.open(1)[0]
    assert b"200 OK" in answer(newest)
    assert num_open(waiting[: -MAX_CONNECTIONS + 1], 0) == 0
    assert is_open(waiting[-1])


def test_who_is_being_answered_gives_way_to_nobody(opened: Opened) -> None:
    streams = opened.open(MAX_CONNECTIONS, POST_STREAM)
    for stream in streams:
        assert b"200 OK" in stream.recv(65536)
    for request in (POST_STREAM, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"):
        reply = answer(opened.open(1)[0], request)
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b'"reason":"under_pressure"' in reply
        assert b"retry-after: 2" in reply
    assert all(b"data: " in stream.recv(65536) for stream in streams)
    streams[0].close()
    deadline = time.monotonic() + 5
    while b"200 OK" not in answer(opened.open(1)[0], POST_STREAM):
        assert time.monotonic() < deadline


def test_a_server_full_of_streams_answers_its_probes_and_no_more(opened: Opened) -> None:
    streams = opened.open(MAX_CONNECTIONS, POST_STREAM)
    for stream in streams:
        assert b"200 OK" in stream.recv(65536)
    for path in [*PUBLIC] * 3:
        probe = opened.open(1)[0]
        reply = answer(probe, b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
        assert reply.startswith(b"HTTP/1.1 200 OK" if path in PROBES else b"HTTP/1.1 503 "), (path, reply)
        assert b"under_pressure" not in reply
        assert num_open([probe], 0) == 0
    silent = opened.open(3 * NUM_SPARE_CONNECTIONS)
    assert b"200 OK" in answer(opened.open(1)[0])
    assert num_open(silent, NUM_SPARE_CONNECTIONS - 1) == NUM_SPARE_CONNECTIONS - 1
    assert all(b"data: " in stream.recv(65536) for stream in streams)


def test_who_came_over_the_limit_is_served_once_there_is_room(server: SocketServer, opened: Opened) -> None:
    streams = opened.open(MAX_CONNECTIONS, POST_STREAM)
    for stream in streams:
        assert b"200 OK" in stream.recv(65536)
    early = opened.open(1)[0]
    streams[0].close()
    deadline = time.monotonic() + 5
    while server.served.engine.num_running == MAX_CONNECTIONS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert b"200 OK" in answer(early, POST_STREAM)


def test_open_connections_and_the_limit_are_counted(server: SocketServer, opened: Opened) -> None:
    opened.open(3)
    deadline = time.monotonic() + 5
    while (counts := server.served.api.count_connections())[0] != 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts == (3, LIMITS.max_num_connections)


def test_a_thousand_pipelined_requests_are_answered_in_order(opened: Opened) -> None:
    connection = opened.open(1)[0]
    requests = [b"GET /livez HTTP/1.1\r\nhost: x\r\nx-request-id: r%d\r\n\r\n" % number for number in range(1000)]
    connection.sendall(b"".join(requests))
    data = b""
    while data.count(b"x-request-id: ") < 1000:
        chunk = connection.recv(1 << 20)
        assert chunk, data[-500:]
        data += chunk
    labels = [part.split(b"\r\n", 1)[0] for part in data.split(b"x-request-id: ")[1:]]
    assert labels == [b"r%d" % number for number in range(1000)]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)) * 4,
        b"GET /livez HTTP/1.1\nhost: x\n\n",
        b"GET /livez HTTP/1.1\r\nhost: x\nx: y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nx: y\r\n folded\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nho\x00st: x\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5, 5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0x5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_could_be_read_two_ways_is_a_400_closed_and_counted(
    server: SocketServer, opened: Opened, sent: bytes
) -> None:
    before = len(server.served.recorder.of(HttpRequestEnded))
    connection = opened.open(1, sent)[0]
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            data += chunk
    assert data.startswith(b"HTTP/1.1 400 Bad Request\r\n"), data
    assert data.count(b"HTTP/1.1 4") == 1
    assert b"connection: close" in data
    facts = server.served.recorder.of(HttpRequestEnded)[before:]
    assert [fact.handler for fact in facts if (fact.status, fact.reason) == (400, "invalid_http")] == ["other"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"zz\r\n", 400, b"invalid_http"),
        (b"5\r\nabcdeXX", 400, b"invalid_http"),
        (b"-1\r\n\r\n", 400, b"invalid_http"),
        (b"fffffffffffffffff\r\n", 400, b"invalid_http"),
    ],
)
def test_bad_chunks_are_a_400_and_closed(opened: Opened, body: bytes, status: int, reason: bytes) -> None:
    head = POST_STREAM.split(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n"
    connection = opened.open(1, head + body)[0]
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            data += chunk
    assert data.startswith(b"HTTP/1.1 %d " % status), data
    assert reason in data


def test_odd_headers_change_nothing(opened: Opened) -> None:
    body = b'{"prompt":"Hi","max_tokens":1}'
    ranges = b", ".join(b"%d-%d" % (number, number + 1) for number in range(3000))
    odd = b"accept: image/png\r\nrange: bytes=%b\r\nif-none-match: *\r\nupgrade: h2c\r\nte: trailers\r\n" % ranges
    head = POST_STREAM.split(b"content-length")[0] + b"content-length: %d\r\n" % len(body)
    assert answer(opened.open(1)[0], head + odd + b"\r\n" + body).startswith(b"HTTP/1.1 200 OK")


def test_a_stream_nobody_reads_is_cut_by_its_size_and_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_stream, "MAX_WAITING_TOKENS", 500)
    body = b'{"prompt":["A","B","C","D"],"max_tokens":2000,"stream":true,"logprobs":20}'
    request = POST_STREAM.split(b"content-length")[0] + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    with socket_server(seconds_a_token=0.0) as server, socket.socket() as deaf, server.connect() as other:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before a window is agreed on
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(request)
        deadline = time.monotonic() + 20
        while len(server.served.recorder.of(RequestEnded)) < 4 and time.monotonic() < deadline:
            assert b"200 OK" in answer(other)
            time.sleep(0.05)
        ended = server.served.recorder.of(RequestEnded)
        assert [fact.finish_reason for fact in ended] == ["abort"] * 4
        assert all(fact.num_output_tokens < 2000 for fact in ended)
        assert server.served.engine.num_running == 0


def test_garbage_behind_good_requests_is_refused_after_they_are_answered(opened: Opened) -> None:
    labelled = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-request-id: %b\r\n\r\n"
    connection = opened.open(1, labelled % b"one" + labelled % b"two" + b"BAD\x00garbage\r\n\r\n")[0]
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"200", b"400"]
    assert data.index(b"x-request-id: one") < data.index(b"x-request-id: two") < data.index(b"invalid_http")


def test_a_bad_chunk_behind_a_reply_that_has_begun_ends_the_connection(opened: Opened) -> None:
    head = POST_STREAM.split(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n"
    connection = opened.open(1, head + b"20000\r\n" + b" " * 0x20000 + b"\r\n")[0]
    data = connection.recv(65536)
    assert data.startswith(b"HTTP/1.1 413 ")
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"zz\r\n")
        while chunk := connection.recv(65536):
            data += chunk
    assert re.findall(rb"HTTP/1.1 \d+", data) == [b"HTTP/1.1 413"]
