"""Server-sent events: one response that pulls frames only as fast as its client reads them."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vllm_obs.server.body import ClientGoneError
from vllm_obs.server.boundary import reply_for
from vllm_obs.server.disconnect import until_disconnect
from vllm_obs.server.errors import ApiError

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"
COMMENT_AFTER_SECONDS = 15.0

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class StreamSource(Protocol):
    """Where frames come from."""

    @property
    def request_id(self) -> str:
        """Our id of the request, for the log."""

    async def aclose(self) -> None:
        """Stop making frames; called always."""


class EventStream(Response):
    """Sends what `frames` yields, each a whole number of events.

    A failure in `frames` is the stream's last event, `data: {"error": …}`, and no [DONE] follows. When the
    client goes, `frames` is closed. A comment is sent after 15 s without an event, so that nobody between
    takes a queued request for a dead one. `source` is closed at the end.
    """

    def __init__(self, frames: AsyncGenerator[bytes, None], source: StreamSource) -> None:
        super().__init__()
        self._frames = frames
        self._source = source
        self._lock = asyncio.Lock()
        self._has_sent = False
        """Whether an event was sent since the last look at it."""
        self._commenting: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        scope.setdefault("state", {})["probe_frame"] = COMMENT
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await until_disconnect(receive, self._send_all(scope, send))
        except ClientGoneError:
            logger.debug("the client of request %s went away", self._source.request_id)
        finally:
            await self._frames.aclose()
            await self._source.aclose()  # frames that nobody has begun to read cannot do it

    def error_event(self, error: ApiError) -> bytes:
        """The last event of a stream that failed; an API whose events have types may say it in its own way."""
        return b"data: " + error.body() + b"\n\n"

    async def _send_all(self, scope: Scope, send: Send) -> None:
        self._comment_later(send)
        try:
            async for frame in self._frames:
                await self._send_frame(send, frame)
        except Exception as error:
            reply = reply_for(error, self._source.request_id)
            scope["state"]["reason"] = reply.reason
            await self._send_frame(send, self.error_event(reply))
        finally:
            self._timer.cancel()
            if self._commenting is not None:
                self._commenting.cancel()
                await asyncio.wait({self._commenting})
        await send({"type": "http.response.body", "body": b""})

    async def _send_frame(self, send: Send, frame: bytes) -> None:
        async with self._lock:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._has_sent = True

    def _comment_later(self, send: Send) -> None:
        """Have a look in a while. There is a task only where there is a comment: most streams need none."""
        self._has_sent = False
        self._timer = asyncio.get_running_loop().call_later(COMMENT_AFTER_SECONDS, self._look, send)

    def _look(self, send: Send) -> None:
        is_over = self._commenting is None or self._commenting.done()
        if not self._has_sent and is_over:
            self._commenting = asyncio.ensure_future(self._comment(send))
        self._comment_later(send)

    async def _comment(self, send: Send) -> None:
        async with self._lock:
            await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
