"""What is around a body: wishes to upgrade, trailers, chunk extensions, a second Host, an early end."""

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from hostile_bytes import reply_in
from hostile_exchange import check_refusal
from http_app import SocketServer, socket_server

from vllm_obs.server.config import Limits, ServerConfig

LIMITS = Limits(max_head_bytes=20_000, body_timeout_seconds=20.0)
BODY = b'{"prompt":"Hi","max_tokens":2}'
H2C = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[SocketServer]:
    with socket_server(seconds_a_token=0.0, server=ServerConfig(limits=LIMITS)) as running:
        yield running


def post(headers: bytes, body: bytes) -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%b\r\n%b" % (
        headers,
        body,
    )


def sized(headers: bytes = b"") -> bytes:
    return post(headers + b"content-length: %d\r\n" % len(BODY), BODY)


def chunked(headers: bytes = b"", trailers: bytes = b"") -> bytes:
    return post(headers + CHUNKED, b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers))


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            data += chunk
    return data


def exchange(server: SocketServer, *parts: bytes) -> bytes:
    with server.connect() as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.02 if len(parts) > 1 else 0)
        return read_all(connection)


def statuses(data: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", data)]


@pytest.mark.parametrize("wish", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("request_of", [sized, chunked])
def test_a_wish_to_upgrade_is_ignored_and_the_body_is_read(
    server: SocketServer, wish: bytes, request_of: Callable[[bytes], bytes]
) -> None:
    data = exchange(server, request_of(wish) * 3 + LIVEZ)
    assert statuses(data) == [200] * 4
    assert data.count(b'"finish_reason":"length"') == 3


def test_the_body_of_a_wish_to_upgrade_may_come_later_and_in_parts(server: SocketServer) -> None:
    head, _, body = chunked(H2C).partition(b"\r\n\r\n")
    data = exchange(server, head, b"\r\n\r\n", body[:9], body[9:] + LIVEZ)
    assert statuses(data) == [200, 200]


def test_thousands_of_wishes_to_upgrade_in_one_read_are_answered(server: SocketServer) -> None:
    one = b"GET /livez HTTP/1.1\r\nhost: x\r\n%b\r\n" % H2C
    assert statuses(exchange(server, one * 1500 + LIVEZ)) == [200] * 1501


def test_nothing_behind_a_refused_tunnel_is_answered(server: SocketServer) -> None:
    assert statuses(exchange(server, b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + LIVEZ)) in ([400], [405])
    assert statuses(exchange(server, b"CONNECT /livez HTTP/1.1\r\nhost: x\r\n\r\n" + LIVEZ)) == [405]


def test_trailers_are_left_out(server: SocketServer) -> None:
    data = exchange(server, chunked(trailers=b"x-request-id: late\r\nhost: y\r\n") + LIVEZ)
    assert statuses(data) == [200, 200]
    assert b"late" not in data


@pytest.mark.parametrize(
    "endless",
    [b"0\r\n" + b"a: b\r\n" * 20_000, b"0\r\na: " + b"b" * 100_000, b"1;" + b"a" * 100_000],
    ids=["trailers", "one trailer", "a chunk's extension"],
)
def test_endless_framing_is_refused_at_the_limit(server: SocketServer, endless: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(post(CHUNKED, b""))
        for start in range(0, len(endless), 10_000):
            with contextlib.suppress(ConnectionError):
                connection.sendall(endless[start : start + 10_000])
                time.sleep(0.005)
        reply = reply_in(read_all(connection))
    check_refusal(reply)
    assert (reply.status, reply.error["reason"]) == (431, "too_large")


def test_endless_trailers_behind_an_answer_end_the_connection(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nhost: x\r\n%b\r\n0\r\n" % CHUNKED)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"a: b\r\n" * 1000)
                time.sleep(0.005)
        assert statuses(read_all(connection)) in ([404], [])


def test_a_body_in_chunks_of_one_byte_is_read(server: SocketServer) -> None:
    body = b" " * 30_000 + BODY
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert statuses(exchange(server, post(CHUNKED + CLOSE, chunks + b"0\r\n\r\n"))) == [200]


@pytest.mark.parametrize(
    "headers",
    [b"host: y\r\n", b"transfer-encoding: gzip, chunked\r\n", b"transfer-encoding: gzip\r\n" + CHUNKED],
)
def test_what_can_be_read_in_two_ways_is_a_400_and_closed(server: SocketServer, headers: bytes) -> None:
    reply = reply_in(exchange(server, post(headers, b"0\r\n\r\n")))
    check_refusal(reply)
    assert (reply.status, reply.error["reason"]) == (400, "invalid_http")


def test_a_connection_closed_before_the_end_of_its_body_is_answered_at_once(server: SocketServer) -> None:
    begun = time.monotonic()
    with server.connect() as connection:
        connection.sendall(sized()[:-5])
        connection.shutdown(socket.SHUT_WR)
        reply = reply_in(read_all(connection).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"))
    check_refusal(reply)
    assert (reply.status, reply.error["reason"]) == (400, "invalid_http")
    assert time.monotonic() - begun < LIMITS.body_timeout_seconds / 2
