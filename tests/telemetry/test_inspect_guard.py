"""The inspector answers its own names and loopback pages, and nobody who was bound to its address by a trick."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from vllm_obs.telemetry.inspect_guard import InspectGuard


async def plain_app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status(bound_to: str, headers: list[tuple[str, str]]) -> int:
    """What a request with these headers is answered."""
    return int(answered("http", bound_to, headers)[0]["status"])


def answered(kind: str, bound_to: str, headers: list[tuple[str, str]]) -> list[Any]:
    """All messages that a request or WebSocket with these headers is answered with."""
    sent: list[Any] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": kind, "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}
    asyncio.run(InspectGuard(plain_app, bound_to)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9000", "localhost:9000", "LOCALHOST.", "[::1]:9000", "127.9.9.9"]
)
def test_loopback_is_let_in(host: str) -> None:
    assert status("127.0.0.1", [("host", host)]) == 200
    assert status("127.0.0.1", [("host", host), ("origin", f"http://{host}")]) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.5", "",
     "a@127.0.0.1", "127.0.0.1:x", "[::1", "0x7f.1", "\xff", "127.0.0.1/x", "127.0.0.1?x", "127.0.0.1#x",
     "/127.0.0.1"],
)  # fmt: skip
def test_other_hosts_are_refused(host: str) -> None:
    assert status("127.0.0.1", [("host", host)]) == 403


@pytest.mark.parametrize("headers", [[], [("host", "127.0.0.1"), ("host", "evil.example")]])
def test_there_is_one_host_header(headers: list[tuple[str, str]]) -> None:
    assert status("127.0.0.1", headers) == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8501",
        "https://127.0.0.1",
        "http://localhost",
        "http://evil.example",
        "null",
        "file://",
        "https://127.0.0.1.evil.example",
        "",
    ],
)
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    assert status("127.0.0.1", [("host", "127.0.0.1"), ("origin", origin)]) == 403


def test_the_name_it_was_bound_to_is_its_own() -> None:
    assert status("box.lan", [("host", "box.lan:9000")]) == 200
    assert status("10.0.0.5", [("host", "10.0.0.5")]) == 200
    assert status("10.0.0.5", [("host", "10.0.0.6")]) == 403


def test_bound_to_every_address_it_answers_addresses_but_not_names() -> None:
    assert status("0.0.0.0", [("host", "10.0.0.5:9000")]) == 200
    assert status("0.0.0.0", [("host", "evil.example")]) == 403


@pytest.mark.parametrize(
    "headers",
    [
        [("host", "evil.example")],
        [("host", "evil.example"), ("origin", "http://evil.example")],
        [("host", "127.0.0.1:8501"), ("origin", "http://evil.example")],
        [("host", "127.0.0.1:8501"), ("origin", "http://localhost:3000")],
        [("host", "127.0.0.1:8501"), ("origin", "http://127.0.0.1:3000")],
        [("host", "127.0.0.1:8501"), ("origin", "null")],
        [],
    ],
)
def test_websocket_of_another_page_is_closed_before_anybody_behind_sees_it(headers: list[tuple[str, str]]) -> None:
    (closed,) = answered("websocket", "127.0.0.1", headers)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


@pytest.mark.parametrize("headers", [[], [("origin", "http://127.0.0.1:8501")]])
def test_websocket_of_its_own_page_is_let_in(headers: list[tuple[str, str]]) -> None:
    assert answered("websocket", "127.0.0.1", [("host", "127.0.0.1:8501"), *headers]) == [
        {"type": "websocket.accept"}
    ]


def test_other_kinds_of_scope_are_not_its_business() -> None:
    assert answered("lifespan", "127.0.0.1", [])[0]["status"] == 200
