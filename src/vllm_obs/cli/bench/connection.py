"""One HTTP/1.1 connection that posts a request and notes when each event of the streamed reply came."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import orjson

MAX_BODY_BYTES = 1 << 20
MAX_EVENT_BYTES = 1 << 24


class ConnectionLostError(ConnectionError):
    """The server closed the connection in the middle of a reply, or before it (`began` False)."""

    def __init__(self, message: str, began: bool) -> None:
        super().__init__(message)
        self.began = began


@dataclass
class Reply:
    """What came back. `token_moments` are monotonic ns, one for each event that carried text or tokens."""

    status: int = 0
    token_moments: list[int] = field(default_factory=list)
    ended_at: int = 0
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_events: int = 0
    is_complete: bool = False
    error: str = ""
    body: bytes = b""


class Connection(asyncio.Protocol):
    """Serves one request at a time; `is_open` tells whether it can take another."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Reply] | None = None
        self._reset()

    async def post(self, request: bytes, keep_body: bool = False) -> Reply:
        """Send a whole request, wait for the whole reply, as events or as a body. Raises ConnectionLostError."""
        if self._transport is None or not self.is_open:
            raise ConnectionLostError("the connection is closed", began=False)
        self._reset()
        self._keep_body = keep_body
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answered
        finally:
            self._answered = None

    def close(self) -> None:
        """Close without waiting; a request under way is cut off."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._reply = Reply()
        self._pending = b""
        self._keep_body = False
        self._now = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse what came, all of it at this moment."""
        self._now = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._lose(f"not a valid HTTP reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request under way."""
        self._lose(f"the server closed the connection{f' ({exc})' if exc else ''}")

    def _lose(self, message: str) -> None:
        self.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionLostError(message, began=self._reply.status != 0))

    # httptools

    def on_headers_complete(self) -> None:
        """Note the status."""
        self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Take the events that are whole by now."""
        if self._keep_body or self._reply.status != 200:
            self._reply.body = (self._reply.body + body)[:MAX_BODY_BYTES]
            return
        *events, self._pending = (self._pending + body).split(b"\n\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for event in events:
            self._take_event(event)

    def on_message_complete(self) -> None:
        """Hand the reply over."""
        self._reply.ended_at = self._now
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(self._reply)

    def _take_event(self, event: bytes) -> None:
        if not event.startswith(b"data:"):
            return
        payload = event[5:].strip()
        if payload == b"[DONE]":
            self._reply.is_complete = True
            return
        self._take_chunk(orjson.loads(payload))

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        reply = self._reply
        reply.num_events += 1
        if error := chunk.get("error"):
            reply.error = str(error.get("message") if isinstance(error, dict) else error)
        if usage := chunk.get("usage"):
            reply.num_prompt_tokens = usage["prompt_tokens"]
            reply.num_output_tokens = usage["completion_tokens"]
        if any(choice.get("text") or choice.get("token_ids") for choice in chunk.get("choices", ())):
            reply.token_moments.append(self._now)
