"""Calls the application as an HTTP server would, without one: a POST of JSON in, its whole reply out."""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope

from vllm_obs.server.errors import ApiError
from vllm_obs.server.request_id import new_id

_HEADERS = [(b"host", b"batch"), (b"content-type", b"application/json")]


class Reply(NamedTuple):
    """A whole reply. `body` is JSON on one line; `request_id` is what the application calls the request."""

    status: int
    request_id: str
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether it is what was asked for."""
        return 200 <= self.status < 300


async def call_app(app: ASGIApp, path: str, body: bytes) -> Reply:
    """Post a body. Cancelling the call aborts what the request had begun, as a client's leaving does."""
    exchange = _Exchange(body)
    await app(_scope(path, body), exchange.receive, exchange.send)
    return exchange.reply()


def _scope(path: str, body: bytes) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*_HEADERS, (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
        "state": {},
    }


@dataclass
class _Exchange:
    """The two ends of a connection whose client sends all at once and stays."""

    request: bytes
    was_sent: bool = False
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content: bytes = b""

    async def receive(self) -> Message:
        """The body; then nothing more comes."""
        if self.was_sent:
            await asyncio.get_running_loop().create_future()
        self.was_sent = True
        return {"type": "http.request", "body": self.request, "more_body": False}

    async def send(self, message: Message) -> None:
        """Take a part of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = tuple(message.get("headers", ()))
        else:
            self.content += message.get("body", b"")

    def reply(self) -> Reply:
        """The reply; an error where there is none, or none in JSON."""
        found = {name.lower(): value for name, value in self.headers}
        request_id = found.get(b"x-request-id", b"").decode("latin-1") or new_id()
        is_json = found.get(b"content-type", b"").startswith(b"application/json")
        if not self.status or not is_json or b"\n" in self.content:
            lost = ApiError(f"internal error; its id is {request_id}", "internal_error")
            return Reply(lost.status, request_id, lost.body())
        return Reply(self.status, request_id, self.content)
