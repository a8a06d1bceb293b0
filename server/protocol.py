"""One HTTP/1.1 connection: uvicorn's protocol with limits and deadlines, and care for half-closed clients."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.body_writer import BodyWriter
from vllm_obs.server.config import Limits
from vllm_obs.server.connection_room import ConnectionRoom, no_room
from vllm_obs.server.errors import ApiError
from vllm_obs.server.half_closed import HalfClosed
from vllm_obs.server.oversized_key import OpenLine, OversizedKeys
from vllm_obs.server.refused_head import RefusedHead
from vllm_obs.server.request_id import new_id
from vllm_obs.server.request_parser import RequestParser, ambiguity, too_large, version_fault

MAX_FRAMING_RATIO = 16
"""Bytes on the wire for each of a chunked body: a chunk of one byte has six."""


class _RefusedHeadError(Exception):
    """Stops the parser; the reply is in `HttpProtocol._refusal`."""


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    A client that closes only its sending half is still answered. As TCP does not tell that from a full close,
    a client that has gone silent is sent something harmless while its request runs on (an interim
    100 response, or a comment in a stream): a closed peer resets the connection, and the request is aborted.

    The application finds in the scope's state `received_at`, when the request's first byte was read,
    `body_writer`, for parts of a reply that has begun, and `written`, which returns once the socket has taken the
    reply: whether its client was there to the end.
    `on_refused` is told of requests that never reach the application.

    There are as many connections as `limits` and the process's open files allow. Beyond that a new one takes the
    place of who has kept us waiting longest (for a head, a body, or the next request), so that half-open
    connections shut nobody out. Where every other one is being answered it is a spare one, which the scope's state
    tells (`is_spare`): one probe or scrape is answered, anything else is refused.
    """

    limits = Limits()
    room: ClassVar[ConnectionRoom["HttpProtocol"]] = ConnectionRoom(limits.max_num_connections)
    """One for each server."""
    oversized_keys: ClassVar = OversizedKeys(ApiKeys({}), "", limits)
    on_refused: Callable[[RefusedHead], None] = staticmethod(lambda refused: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser: RequestParser = RequestParser(self)  # type: ignore[assignment]
        self._in_head = True
        self._head_bytes = 0
        self._open_line = OpenLine()
        self._bytes_after_head = 0
        self._body_bytes = 0
        self._head_begun_at = 0
        self._refusal: ApiError | None = None
        self._is_refusal_due = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head."""
        super().connection_made(transport)
        self._start_head_timer()
        self.room.waits(self)
        if not self.room.is_enough_for(len(self.connections) - len(self.room.spare)):
            self._take_place()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self.room.is_closed(self)
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, counting what belongs to an unfinished head."""
        if self._refusal is not None:
            return
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._bytes_after_head += len(data)
        super().data_received(data)
        if self._refusal is None:
            if self._in_head:
                self._open_line.add(data)
            self._bound_head_and_framing()
        self._rearm_keep_alive()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection for the reply when a request is under way."""
        if self.cycle is None or self.cycle.response_complete or self._in_head:
            return None
        if self.transport.get_extra_info("sslcontext") is not None:
            return None  # TLS knows no half-closed connection
        self.cycle.keep_alive = False
        HalfClosed(self).start()
        return True

    def pause_writing(self) -> None:
        """The client reads too slowly: give it `send_timeout_seconds` to catch up."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.send_timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self.flow is not None:
            super().resume_writing()

    def on_message_begin(self) -> None:
        """A new head begins."""
        super().on_message_begin()
        self._in_head = True
        self._bytes_after_head = self._body_bytes = 0
        self._head_begun_at = time.monotonic_ns()
        self._start_head_timer()
        if self.cycle is None or self.cycle.response_complete:
            self.room.waits(self)

    def on_url(self, url: bytes) -> None:
        """Collect the target, up to its limit."""
        super().on_url(url)
        if len(self.url) > self.limits.max_url_bytes:
            self._stop_parser(self._too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. One that comes after the body is left out: nobody looks at it any more."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large, of another version, or can be read in two ways."""
        head_bytes = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head_bytes > self.limits.max_head_bytes or len(self.headers) > self.limits.max_num_headers:
            self._stop_parser(self._oversized_head(OpenLine()))
        version = self.parser.get_http_version()
        if refusal := version_fault(version):
            self._stop_parser(refusal)
        if fault := ambiguity(self.headers, version):
            self._stop_parser(ApiError(fault, "invalid_http", closes=True))
        self._in_head = False
        self._head_bytes = 0
        self._stop_head_timer()
        self.scope["state"]["received_at"] = self._head_begun_at
        is_spare = self.scope["state"]["is_spare"] = self.room.is_spare(self, len(self.connections))
        super().on_headers_complete()
        if is_spare or self.scope["method"] == "CONNECT":  # others want its place; what follows is no HTTP
            self.cycle.keep_alive = False
        self.scope["state"]["written"] = partial(self._written, self.cycle)
        self.scope["state"]["body_writer"] = BodyWriter(self.cycle)

    def on_message_complete(self) -> None:
        """The whole request is here: from now on the client waits for us."""
        if self.parser.is_at_upgrade():
            return
        super().on_message_complete()
        if not self.cycle.response_complete:
            self.room.is_busy(self)

    def on_response_complete(self) -> None:
        """The reply is out; where nothing else is asked already, it is the client's turn."""
        is_last = not self.pipeline
        super().on_response_complete()
        if not is_last or self.transport.is_closing():
            return
        if self._is_refusal_due and self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self.room.waits(self)

    def give_way(self) -> None:
        """Close this connection, which waits for its client, in favour of another."""
        self.room.is_busy(self)
        is_new_spare = self.cycle is None and self in self.room.spare
        if self._in_head and (self._head_bytes or is_new_spare) and self._refusal is None:
            self._send_refusal(no_room())
        self.transport.close()

    def _take_place(self) -> None:
        """Close who waits longest, or this new connection where nobody else waits."""
        oldest = self.room.take_in(self)
        if oldest is self:
            self._send_refusal(no_room())
            self.transport.close()
        elif oldest is not None:
            oldest.give_way()

    async def _written(self, cycle: RequestResponseCycle) -> bool:
        """Return once the socket has taken what was sent; False when the client had left before."""
        await asyncio.sleep(0)  # uvloop passes on at the end of an iteration what was written in it
        if not self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)
            await self.flow.drain()
            self.transport.set_write_buffer_limits()
        return not cycle.disconnected

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or a head that was refused."""
        self._refuse(
            self._refusal or ApiError("this is not a valid HTTP/1.1 request", "invalid_http", closes=True)
        )

    def _bound_head_and_framing(self) -> None:
        """Refuse a head, or what is around a body (chunk sizes, their extensions, trailers), beyond its limit."""
        allowed = self.limits.max_head_bytes
        if self._in_head and self._head_bytes > allowed:
            self._refuse(self._oversized_head(self._open_line))
        elif not self._in_head and self._bytes_after_head > allowed + MAX_FRAMING_RATIO * self._body_bytes:
            if self.cycle.response_complete:
                self.transport.close()
            else:
                self._refuse(self._too_large())

    def _too_large(self) -> ApiError:
        return too_large(self.limits, getattr(self, "url", b""))

    def _oversized_head(self, line: OpenLine) -> ApiError:
        read = getattr(self, "url", b""), getattr(self, "headers", ())
        return self.oversized_keys.refusal(*read, line) or self._too_large()

    def refuse_early_end(self) -> None:
        """The client is there, but sends no more of its body."""
        self._refuse(ApiError("the connection was closed before the end of the body", "invalid_http", closes=True))

    def _stop_parser(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise _RefusedHeadError

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, and close; after what was asked before has been answered."""
        self._refusal = error
        self._is_refusal_due = self._is_answering()
        if not self._is_refusal_due:
            self._send_refusal(error)
            self._close_gently()

    def _is_answering(self) -> bool:
        """Whether earlier requests are under way. One of which only the head was good is given up."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        if not cycle.more_body:
            return True
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            return True
        if cycle.response_started:
            self.transport.abort()  # a status line in the middle of a reply would be read as part of it
            return True
        cycle.disconnected = True
        cycle.message_event.set()
        return False

    def _send_refusal(self, error: ApiError) -> None:
        self._refusal = error
        refused = RefusedHead(new_id(), error, self._head_begun_at or time.monotonic_ns())
        self.transport.write(refused.reply(self.server_state.default_headers))
        if self.access_log:
            self.access_logger.info("%s - %s", ":".join(map(str, self.client or ())), refused.line)
        self.on_refused(refused)

    def _close_gently(self) -> None:
        """Close a moment later, so that bytes still coming in do not reset the reply."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(1.0, self.transport.close)

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_timeout_seconds, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self._in_head:
            return
        if self.cycle is not None and (self.pipeline or not self.cycle.response_complete):
            self._start_head_timer()  # the head of a pipelined request waits for its turn, not for the client
            return
        if self.cycle is None and self._head_bytes == 0:
            self.transport.close()
            return
        message = f"the request head did not arrive within {self.limits.head_timeout_seconds:g} s"
        self._refuse(ApiError(message, "head_timeout", closes=True))

    def _rearm_keep_alive(self) -> None:
        """uvicorn disarms it for any byte; the rest of a body nobody wants must not hold the connection."""
        idle = self.cycle is not None and self.cycle.response_complete and not self.pipeline and not self._in_head
        if idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
