"""Every HTTP request leaves one fact, whatever becomes of it."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import Served, SocketServer, served, socket_server

from vllm_obs.server.config import Limits, ServerConfig
from vllm_obs.telemetry.records import HttpRequestEnded, RequestEnded, RequestSubmitted

TEXT = "/v1/completions"
JSON = {"content-type": "application/json"}
Scenario = Callable[[Served], Awaitable[Any]]


def facts_of(
    scenario: Scenario, server: ServerConfig | None = None, ready: bool = True, script: Any = (30, 30)
) -> list[Any]:
    """What was recorded of the HTTP requests of a scenario."""

    async def main() -> list[Any]:
        async with served(FakeEngine(lambda request: script), server, ready) as app:
            await scenario(app)
            assert app.api.num_open_http == 0
            return app.recorder.of(HttpRequestEnded)

    return asyncio.run(main())


def one(method: str, path: str, server: ServerConfig | None = None, ready: bool = True, **sent: Any) -> Any:
    async def scenario(app: Served) -> None:
        await app.client.request(method, path, **sent)

    (fact,) = facts_of(scenario, server, ready)
    return fact


def test_a_request_that_was_answered() -> None:
    body = b'{"prompt": "Hi", "max_tokens": 2}'
    before = time.monotonic_ns()
    fact = one("POST", TEXT, content=body, headers={"x-request-id": "mine", **JSON})
    assert fact._replace(http_id="", received_at=0, first_byte_at=0, ended_at=0, num_response_bytes=0) == (
        HttpRequestEnded("", 0, "mine", TEXT, "POST", 200, "", "", 0, 0, 0, len(body), 0)
    )
    assert before < fact.received_at < fact.first_byte_at < fact.ended_at < time.monotonic_ns()
    assert fact.num_response_bytes > 300


@pytest.mark.parametrize(
    ("method", "path", "sent", "handler", "status", "reason"),
    [
        ("GET", "/health", {}, "/health", 200, ""),
        ("GET", "/v1/models/{model_id}", {}, "/v1/models/{model_id:path}", 404, "model_not_found"),
        ("POST", TEXT, {"json": {"prompt": "Hi", "temperature": 3}}, TEXT, 400, "invalid_value"),
        ("POST", TEXT, {"json": {"prompt": "Hi", "model": "no"}}, TEXT, 404, "model_not_found"),
        ("POST", TEXT, {"content": b"x"}, TEXT, 415, "unsupported_media_type"),
        ("GET", TEXT, {}, TEXT, 405, "method_not_allowed"),
        ("GET", "/nothing/here", {}, "other", 404, "not_found"),
        ("BREW", "/health", {}, "/health", 405, "method_not_allowed"),
    ],
)
def test_requests_by_their_path_and_ending(
    method: str, path: str, sent: dict[str, Any], handler: str, status: int, reason: str
) -> None:
    fact = one(method, path, **sent)
    known = method if method != "BREW" else "other"
    assert (fact.handler, fact.method, fact.status, fact.reason) == (handler, known, status, reason)


@pytest.mark.parametrize("path", [TEXT, "/v1/models/a/b", "/nothing"])
def test_one_without_a_key(path: str) -> None:
    fact = one("POST", path, ServerConfig(api_keys=("secret",)), json={"prompt": "Hi"})
    handlers = {TEXT: TEXT, "/v1/models/a/b": "/v1/models/{model_id:path}", "/nothing": "other"}
    assert (fact.handler, fact.status, fact.reason) == (handlers[path], 401, "unauthorized")


def test_one_that_came_too_early() -> None:
    fact = one("POST", TEXT, ready=False, json={"prompt": "Hi"})
    assert (fact.handler, fact.status, fact.reason) == (TEXT, 503, "not_ready")


def test_a_forbidden_preflight() -> None:
    server = ServerConfig(allowed_origins=("https://good.example",))
    sent = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    fact = one("OPTIONS", TEXT, server, headers=sent)
    assert (fact.handler, fact.method, fact.status, fact.reason) == (TEXT, "OPTIONS", 403, "forbidden")


@pytest.mark.parametrize(("stream", "status"), [(False, 500), (True, 200)])
def test_a_sequence_that_failed(stream: bool, status: int) -> None:
    async def scenario(app: Served) -> None:
        await app.post(TEXT, {"prompt": "Hi", "max_tokens": 9, "stream": stream})

    (fact,) = facts_of(scenario, script=(30, ERROR_TOKEN))
    assert (fact.status, fact.reason) == (status, "internal_error")


def test_sequences_name_their_request() -> None:
    async def scenario(app: Served) -> None:
        body = {"prompt": ["A", "B"], "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 2}
        await app.post(TEXT, body, **{"x-request-id": "mine"})
        (ended,) = app.recorder.of(HttpRequestEnded)
        submitted: list[Any] = app.recorder.of(RequestSubmitted)
        assert {fact.http_id for fact in submitted} == {ended.http_id}  # type: ignore[union-attr]
        assert [(fact.num_prompts, fact.num_sequences, fact.sequence_index) for fact in submitted] == [
            (2, 2, index) for index in (0, 1, 0, 1)
        ]
        first = submitted[0]
        assert (first.external_id, first.operation, first.is_streamed) == ("mine", "text_completion", False)
        assert (first.temperature, first.top_p, first.top_k) == (0.5, 0.9, 7)
        assert first.received_at < first.parsed_at == first.rendered_at < first.tokenized_at <= first.submitted_at
        over: list[Any] = app.recorder.of(RequestEnded)
        assert all(0 < fact.last_token_at <= fact.taken_at <= fact.ended_at for fact in over)

    facts_of(scenario)


def test_a_chat_is_rendered_and_then_tokenized() -> None:
    async def scenario(app: Served) -> None:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True}
        await app.post("/v1/chat/completions", body)
        (fact,) = app.recorder.of(RequestSubmitted)
        assert isinstance(fact, RequestSubmitted)
        assert (fact.operation, fact.is_streamed) == ("chat", True)
        assert fact.parsed_at < fact.rendered_at < fact.tokenized_at

    facts_of(scenario)


def test_a_conversation_that_is_embedded_is_rendered_and_then_tokenized() -> None:
    async def scenario(app: Served) -> None:
        await app.post("/v1/embeddings", {"messages": [{"role": "user", "content": "Hi"}]})
        (fact,) = app.recorder.of(RequestSubmitted)
        assert isinstance(fact, RequestSubmitted)
        assert fact.received_at < fact.parsed_at < fact.rendered_at < fact.tokenized_at

    facts_of(scenario)


# Over real connections: what a client does to them, and what never reaches the application.


def recorded(server: SocketServer, number: int = 1, seconds: float = 10.0) -> list[Any]:
    """The facts of requests, once there are so many."""

    async def facts() -> list[Any]:
        return server.served.recorder.of(HttpRequestEnded)

    deadline = time.monotonic() + seconds
    while len(found := server.call(facts())) < number:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def post(connection: socket.socket, **fields: Any) -> None:
    body = json.dumps({"prompt": "Hi", "max_tokens": 500, **fields}).encode()
    connection.sendall(head_of(len(body)) + body)


def head_of(num_bytes: int) -> bytes:
    lines = [f"POST {TEXT} HTTP/1.1", "host: a", "content-type: application/json", f"content-length: {num_bytes}"]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_a_499(stream: bool) -> None:
    with socket_server(seconds_a_token=0.01) as server:
        with server.connect() as connection:
            post(connection, stream=stream)
            if stream:
                connection.recv(10_000)
            else:
                time.sleep(0.05)
        (fact,) = recorded(server)
        assert (fact.handler, fact.method, fact.status, fact.reason) == (TEXT, "POST", 499, "")


def test_a_client_that_leaves_before_its_body_is_there_is_a_499() -> None:
    with socket_server() as server:
        with server.connect() as connection:
            connection.sendall(head_of(9) + b"{")
            time.sleep(0.05)
        (fact,) = recorded(server)
        assert (fact.handler, fact.status, fact.num_request_bytes) == (TEXT, 499, 1)


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"GET /" + b"a" * 300 + b" HTTP/1.1\r\n\r\n", 414, "too_large"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 900 + b"\r\n\r\n", 431, "too_large"),
    ],
)
def test_a_head_that_is_refused_by_the_connection(head: bytes, status: int, reason: str) -> None:
    limits = Limits(max_head_bytes=800, max_url_bytes=200)
    with socket_server(server=ServerConfig(limits=limits)) as server, server.connect() as connection:
        connection.sendall(head)
        reply = connection.recv(10_000)
        (fact,) = recorded(server)
        assert (fact.handler, fact.method, fact.status, fact.reason) == ("other", "other", status, reason)
        assert fact.http_id.encode() in reply
        assert fact.received_at <= fact.ended_at


def test_a_request_begins_with_its_first_byte() -> None:
    with socket_server() as server, server.connect() as connection:
        before = time.monotonic_ns()
        connection.sendall(b"GET /health HT")
        time.sleep(0.1)
        middle = time.monotonic_ns()
        connection.sendall(b"TP/1.1\r\nhost: a\r\n\r\n")
        connection.recv(10_000)
        (fact,) = recorded(server)
        assert before < fact.received_at < middle < fact.ended_at


def test_a_reply_ends_when_the_socket_has_taken_its_last_byte() -> None:
    with socket_server(token=30) as server, contextlib.closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", server.port))
        post(connection, prompt=["Hi"] * 100, max_tokens=100, logprobs=5, ignore_eos=True)
        received = len(connection.recv(1))
        time.sleep(0.3)
        assert recorded(server, 0) == []
        read_on_at = time.monotonic_ns()
        while not (facts := recorded(server, 0)):
            connection.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                received += len(connection.recv(1 << 16))
        (fact,) = facts
        assert fact.status == 200
        assert fact.first_byte_at < read_on_at < fact.ended_at
        assert received > 100_000
