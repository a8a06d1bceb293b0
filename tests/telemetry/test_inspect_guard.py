"""The inspector answers its own names and loopback pages, and nobody who was bound to its address by a trick."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from vllm_obs.telemetry.inspect_guard import InspectGuard


async def plain_app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status(bound_to: str, headers: list[tuple[str, str]]) -> int:
    """What a request with these headers is answered."""
    sent: list[Any] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}
    asyncio.run(InspectGuard(plain_app, bound_to)(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9000", "localhost:9000", "LOCALHOST.", "[::1]:9000", "127.9.9.9"]
)
def test_loopback_is_let_in(host: str) -> None:
    assert status("127.0.0.1", [("host", host)]) == 200
    assert status("127.0.0.1", [("host", host), ("origin", f"http://{host}")]) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.5", "",
     "a@127.0.0.1", "127.0.0.1:x", "[::1", "0x7f.1", "\xff"],
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
