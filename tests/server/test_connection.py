"""What a client can do to its connection: send too much, too slowly, half, or go away."""

import json
import logging
import re
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hostile_bytes import reply_in
from hostile_exchange import check_refusal
from http_app import SocketServer, socket_server

from vllm_obs.server.config import Limits, ServerConfig

LIMITS = Limits(
    max_body_bytes=100_000,
    max_head_bytes=20_000,
    max_url_bytes=4_000,
    max_num_headers=50,
    head_timeout_seconds=0.6,
    body_timeout_seconds=0.6,
    send_timeout_seconds=1.0,
    keep_alive_seconds=1,
)
KEYED = ServerConfig(limits=LIMITS, disable_uvicorn_access_log=True)
SECONDS = 3.0
"""Three times the second within which an abort is promised."""


@pytest.fixture(scope="module")
def server() -> Iterator[SocketServer]:
    with socket_server(seconds_a_token=0.02, server=KEYED) as running:
        yield running


def post(path: str, body: dict[str, object], headers: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def completion(max_tokens: int, stream: bool = False, headers: str = "") -> bytes:
    return post("/v1/completions", {"prompt": "Hi", "max_tokens": max_tokens, "stream": stream}, headers)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


def error_in(data: bytes) -> tuple[int, str]:
    """Of the only reply, which has the one shape and closes the connection."""
    reply = reply_in(data)
    check_refusal(reply)
    return reply.status, reply.error["reason"]


def exchange(server: SocketServer, request: bytes) -> bytes:
    with server.connect() as connection:
        connection.sendall(request)
        return read_all(connection)


def running_after(server: SocketServer, expected: int, seconds: float = SECONDS) -> int:
    """How many sequences run once it is `expected`, or time is up."""
    deadline = time.monotonic() + seconds
    while (running := server.served.engine.num_running) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return running


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_endless_chunked_body_is_cut_at_the_cap(server: SocketServer) -> None:
    with server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(30):
            connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        assert error_in(read_all(connection)) == (413, "too_large")


@pytest.mark.parametrize("length", ["100001", "9" * 17, "9" * 30])
def test_declared_length_over_the_cap_is_refused_before_it_is_sent(server: SocketServer, length: str) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    reply = exchange(server, f"{head}content-length: {length}\r\n\r\n".encode())
    assert error_in(reply) in ((413, "too_large"), (400, "invalid_http"))


def test_half_a_body_is_408_at_the_deadline(server: SocketServer) -> None:
    reply = exchange(server, completion(1)[:-5])
    assert error_in(reply) == (408, "body_timeout")


def test_half_a_head_is_408_at_the_deadline(server: SocketServer) -> None:
    assert error_in(exchange(server, b"GET /health HTTP/1.1\r\nhost: ")) == (408, "head_timeout")


def test_connection_without_a_byte_is_closed_at_the_deadline(server: SocketServer) -> None:
    assert exchange(server, b"") == b""


def test_second_half_head_on_a_kept_connection_is_timed_too(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"GET /li")
        assert error_in(read_all(connection)) == (408, "head_timeout")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 19_000, 408),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 30_000, 431),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 4_000_000, 431),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 30_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 60 + b"\r\n", 431),
        (b"GET /" + b"y" * 5_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"y" * 5_000, 414),
    ],
)
def test_large_heads_are_refused_while_they_are_read(server: SocketServer, head: bytes, status: int) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(head)
        except ConnectionError:
            pytest.fail("the reply was lost to a reset")
        assert error_in(read_all(connection))[0] == status


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"random bytes\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_a_400_and_closed(server: SocketServer, request_bytes: bytes) -> None:
    assert error_in(exchange(server, request_bytes)) == (400, "invalid_http")
    asked = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert exchange(server, asked).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1/../metrics", "/v1/../health", "/%2fhealth", "/health;x", "/health%20"]
)
def test_path_is_taken_as_it_stands(server: SocketServer, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
    reply = exchange(server, request.encode())
    assert reply.startswith(b"HTTP/1.1 404")
    assert b"evil" not in reply


def test_expect_100_continue_is_answered(server: SocketServer) -> None:
    request = completion(1, headers="expect: 100-continue\r\nconnection: close\r\n")
    reply = exchange(server, request)
    assert reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


def test_pipelined_requests_are_answered_in_order(server: SocketServer) -> None:
    labels = [f"x-request-id: r{index}\r\n" for index in range(20)]
    with server.connect() as connection:
        connection.sendall(b"".join(completion(1, headers=label) for label in labels))
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        reply = read_all(connection)
    assert [part.split(b'"')[0] for part in reply.split(b'{"id":"cmpl-')[1:]] == [b"r%d" % n for n in range(20)]


def test_pipelined_streams_are_answered_whole_one_after_the_other(server: SocketServer) -> None:
    """Events that go past the application, too, are a chunk each of the reply whose turn it is."""
    labels = [f"x-request-id: r{index}\r\n" for index in range(3)]
    with server.connect() as connection:
        connection.sendall(b"".join(completion(5, stream=True, headers=label) for label in labels))
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        replies = connection.makefile("rb")
        for index in range(3):
            assert replies.readline().startswith(b"HTTP/1.1 200 ")
            while replies.readline() != b"\r\n":
                pass
            body = b""
            while num_bytes := int(replies.readline(), 16):
                body += replies.read(num_bytes)
                assert replies.readline() == b"\r\n"
            assert replies.readline() == b"\r\n"
            assert body.count(b"data: ") == body.count(b'"cmpl-r%d"' % index) + 1 == 6
            assert body.endswith(b"data: [DONE]\n\n")
        assert replies.readline().startswith(b"HTTP/1.1 200 ")


def test_rest_of_an_unwanted_body_does_not_hold_the_connection(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n")
        time.sleep(0.2)
        connection.sendall(b"x")
        assert read_all(connection).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("stream", [False, True])
def test_reset_aborts_the_request(server: SocketServer, stream: bool) -> None:
    connection = server.connect()
    connection.sendall(completion(2000, stream))
    assert running_after(server, 1) == 1
    reset(connection)
    assert running_after(server, 0) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_close_aborts_the_request(server: SocketServer, stream: bool) -> None:
    connection = server.connect()
    connection.sendall(completion(2000, stream))
    assert running_after(server, 1) == 1
    connection.close()
    assert running_after(server, 0) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_close_aborts_a_request_that_has_no_token_yet(server: SocketServer, stream: bool) -> None:
    server.served.engine.go.clear()
    connection = server.connect()
    connection.sendall(completion(2000, stream))
    try:
        assert running_after(server, 1) == 1
        connection.close()
        assert running_after(server, 0) == 0
    finally:
        server.loop.call_soon_threadsafe(server.served.engine.go.set)


def test_close_aborts_all_sequences_of_a_request(server: SocketServer) -> None:
    connection = server.connect()
    connection.sendall(post("/v1/completions", {"prompt": ["A", "B"], "n": 2, "max_tokens": 2000, "stream": True}))
    assert running_after(server, 4) == 4
    connection.close()
    assert running_after(server, 0) == 0
    assert server.served.llm.num_in_flight == 0


@pytest.mark.parametrize("max_tokens", [2, 40])
def test_half_closed_client_is_still_served(server: SocketServer, max_tokens: int) -> None:
    for stream in (False, True):
        with server.connect() as connection:
            connection.sendall(completion(max_tokens, stream))
            connection.shutdown(socket.SHUT_WR)
            reply = read_all(connection)
        assert b"HTTP/1.1 200 OK" in reply
        assert b'"finish_reason":"length"' in reply
        assert (b"[DONE]" in reply) == stream


def test_half_closed_stream_without_a_token_is_kept(server: SocketServer) -> None:
    server.served.engine.go.clear()
    with server.connect() as connection:
        connection.sendall(completion(2, stream=True))
        connection.shutdown(socket.SHUT_WR)
        assert running_after(server, 1) == 1
        time.sleep(0.8)
        assert server.served.engine.num_running == 1
        server.loop.call_soon_threadsafe(server.served.engine.go.set)
        assert b"[DONE]" in read_all(connection)


def test_kept_connection_is_closed_after_a_half_closed_reply(server: SocketServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("prompts", [{"prompt": ["A"] * 32}, {"prompt": "A", "n": 32}], ids=["sent", "pushed"])
def test_client_that_does_not_read_is_cut_off_and_takes_no_memory(prompts: dict[str, object]) -> None:
    with socket_server(seconds_a_token=0.0, server=KEYED) as server, server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {**prompts, "max_tokens": 300, "stream": True, "logprobs": 20}
        server.served.engine.go.clear()
        connection.sendall(post("/v1/completions", body))
        assert running_after(server, 32) == 32
        server.loop.call_soon_threadsafe(server.served.engine.go.set)
        assert running_after(server, 0, seconds=20) == 0
        deadline = time.monotonic() + 9
        while server.served.api.num_open and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.served.api.num_open == 0


def test_openai_client_chats_streamed_and_not(server: SocketServer) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        model = client.models.list().data[0].id
        whole = client.chat.completions.create(model=model, messages=messages, max_tokens=3)
        assert whole.choices[0].message.content == "..."
        assert client.models.retrieve(model).id == model
        with client.chat.completions.create(
            model=model, messages=messages, max_tokens=3, stream=True, stream_options={"include_usage": True}
        ) as chunks:
            received = list(chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in received[:-1]) == "..."
        assert received[-1].usage is not None
        assert received[-1].usage.completion_tokens == 3
        with pytest.raises(openai.NotFoundError, match="nope"):
            client.chat.completions.create(model="nope", messages=messages)
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=model, prompt="Hi", temperature=3)
        assert refused.value.param == "temperature"


def test_access_log_holds_requests_but_no_probes(caplog: pytest.LogCaptureFixture) -> None:
    with socket_server(server=ServerConfig(limits=LIMITS)) as server, caplog.at_level("INFO", "uvicorn.access"):
        logging.getLogger("uvicorn.access").addHandler(caplog.handler)
        for path in ("/health", "/readyz", "/v1/models"):
            reply = exchange(server, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        exchange(server, b"no request\r\n\r\n")
    logging.getLogger("uvicorn.access").removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert len(lines) == 2
    assert '"GET /v1/models HTTP/1.1" 200 OK (' in lines[0]
    our_id = re.search(rb"x-request-id: (\w+)", reply, re.IGNORECASE)
    assert our_id is not None
    assert lines[0].endswith(f" ({our_id[1].decode()})")
    assert " - refused: 400 invalid_http (" in lines[1]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n", 200),
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"GET /livez HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"GET /livez HTTP/0.9\r\nhost: x\r\n\r\n", 505),
    ],
)
def test_an_http_1_1_request_names_its_host_and_other_versions_are_not_spoken(
    server: SocketServer, head: bytes, status: int
) -> None:
    reply = exchange(server, head)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    if status != 200:
        assert error_in(reply) == (status, "invalid_http")
