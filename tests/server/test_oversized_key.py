"""A key too large for any head is answered as each wrong key is; whatever else is too large is told so."""

import socket
import time
from collections.abc import Iterator

import pytest
from hostile_bytes import reply_in
from http_app import SocketServer, socket_server

from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.config import Limits, ServerConfig
from vllm_obs.server.oversized_key import OpenLine, OversizedKeys

LIMITS = Limits(
    max_head_bytes=20_000,
    max_url_bytes=4_000,
    max_num_headers=50,
    head_timeout_seconds=5.0,
    keep_alive_seconds=1,
)
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
MESSAGES = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n"
LONG = b"x" * 1_000_000
OVER = b"x" * 20_000
END = b"\r\n\r\n"


def keyed(*keys: str) -> ServerConfig:
    return ServerConfig(limits=LIMITS, disable_uvicorn_access_log=True, api_keys=keys)


@pytest.fixture(scope="module")
def server() -> Iterator[SocketServer]:
    with socket_server(server=keyed("s3cret")) as running:
        yield running


@pytest.fixture(scope="module")
def open_server() -> Iterator[SocketServer]:
    with socket_server(server=keyed()) as running:
        yield running


def exchange(server: SocketServer, *parts: bytes) -> bytes:
    """What comes back to who sends everything before reading anything."""
    with server.connect() as connection:
        for part in parts:
            connection.sendall(part)
        return read_all(connection)


def send_without_end(connection: socket.socket, until: float) -> None:
    while time.monotonic() < until:
        connection.sendall(LONG)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


@pytest.mark.parametrize(
    "head",
    [
        MODELS + b"authorization: Bearer " + LONG + END,
        MODELS + b"authorization: Bearer " + OVER + END,
        MODELS + b"AUTHORIZATION:" + LONG,
        MODELS + b"authorization: Bearer " + LONG + b"\r\nauthorization: Bearer s3cret" + END,
        MODELS + b"authorization: Bearer s3cret\r\nauthorization: Bearer " + LONG + END,
        MODELS + b"a: b\r\nauthorization: " + LONG + b"\r\na: b" + END,
    ],
)
def test_it_is_the_401_of_every_wrong_key(server: SocketServer, head: bytes) -> None:
    wrong = reply_in(exchange(server, MODELS + b"connection: close\r\nauthorization: Bearer wrong" + END))
    reply = reply_in(exchange(server, head))
    assert (reply.status, reply.content) == (401, wrong.content)


def test_clients_of_anthropics_api_find_their_own_shape(server: SocketServer) -> None:
    wrong = reply_in(exchange(server, MESSAGES + b"connection: close\r\nx-api-key: wrong" + END))
    reply = reply_in(exchange(server, MESSAGES + b"x-api-key: " + LONG + END))
    assert (reply.status, reply.content) == (401, wrong.content)


def test_it_may_come_in_pieces_and_go_on_after_the_answer(server: SocketServer) -> None:
    pieces = [LONG[at : at + 1_000] for at in range(0, 100_000, 1_000)]
    assert reply_in(exchange(server, MODELS, b"author", b"ization: Bearer ", *pieces)).status == 401


def test_what_was_asked_before_is_answered_first(server: SocketServer) -> None:
    first = MODELS + b"authorization: Bearer s3cret" + END
    data = exchange(server, first + MODELS + b"authorization: Bearer " + LONG + END)
    assert data.count(b"HTTP/1.1 200 ") == data.count(b"HTTP/1.1 401 ") == 1


@pytest.mark.parametrize(
    "head",
    [
        MODELS + b"x: " + LONG,
        MODELS + b"authorization: Bearer s3cret\r\nx: " + LONG,
        MODELS + b"x-api-key: " + LONG,
        MODELS + b"authorization: Bearer wrong\r\nx: " + OVER + END,
        MODELS + b"x: " + OVER + b"\r\nauthorization: " + OVER + END,
        MODELS + b"authorization: " + OVER + b"\r\n" + b"a: b\r\n" * 60 + b"\r\n",
        MODELS.replace(b"/v1/models", b"/health") + b"authorization: " + LONG,
        MESSAGES + b"authorization: Bearer s3cret\r\nx-api-key: " + LONG,
    ],
)
def test_anything_else_beyond_the_limit_is_told_so(server: SocketServer, head: bytes) -> None:
    assert reply_in(exchange(server, head)).status == 431


def test_a_server_without_keys_tells_of_the_limit(open_server: SocketServer) -> None:
    assert reply_in(exchange(open_server, MODELS + b"authorization: Bearer " + LONG + END)).status == 431


def test_a_long_target_is_told_of_first(server: SocketServer) -> None:
    target = b"GET /" + b"y" * 5_000 + b" HTTP/1.1\r\nhost: x\r\nauthorization: "
    assert reply_in(exchange(server, target + LONG)).status == 414


def test_who_never_stops_sending_is_cut_off(server: SocketServer) -> None:
    """What is sent after the answer is dropped, for a second."""
    begun_at = time.monotonic()
    with server.connect() as connection:
        connection.sendall(MODELS + b"authorization: Bearer ")
        with pytest.raises(ConnectionError):
            send_without_end(connection, begun_at + 20)
    assert time.monotonic() - begun_at < 3 * 1.0 + 1.0


def test_behind_a_root_path_public_is_what_is_routed_there() -> None:
    known = OversizedKeys(ApiKeys({"s3cret": ""}), "/api/", LIMITS)
    headers = [(b"host", b"x"), (b"authorization", OVER)]
    assert known.refusal(b"/api/health", headers, OpenLine()) is None
    assert known.refusal(b"/api/v1/models?a=b", headers, OpenLine()) is not None
    assert known.refusal(b"", headers, OpenLine()) is None


def test_the_open_line_is_known_by_its_begin_however_it_comes() -> None:
    line = OpenLine()
    for data, name, num_bytes in (
        (b"GET / HTTP/1.1\r\nAutho", b"", 5),
        (b"rization", b"", 13),
        (b": x", b"authorization", 16),
        (b"y" * 1_000, b"authorization", 1_016),
        (b"\r", b"authorization", 1_017),
        (b"\nx: y", b"x", 4),
        (b"z\r\n", b"", 0),
    ):
        line.add(data)
        assert (line.name, line.num_bytes) == (name, num_bytes)
    line.add(b"y" * 1_000)
    assert len(line.begin) == OpenLine.KEPT_BYTES
