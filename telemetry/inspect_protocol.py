"""InspectProtocol: one connection to the inspector API, with a bound on how many there are and for how long."""

import asyncio
from email.utils import formatdate
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_SECONDS = 10.0
"""A connection whose request has not come whole by then is closed."""
KEEP_ALIVE_SECONDS = 30.0
"""The same for the next request of a connection that was answered."""
SEND_SECONDS = 10.0
"""A client whose socket takes nothing for so long is gone or asleep."""

MAX_REQUEST_BYTES = 1 << 20
"""Of a request that has not come whole, head and trailers included: bodies have a few hundred bytes."""


class InspectProtocol(HttpToolsProtocol):
    """One connection.

    When there are `max_connections` of one listener, the one that has waited longest for its client makes room; a
    new one is closed only where all the others are being answered. So those who connect and say nothing keep
    nobody out.
    """

    max_connections: ClassVar[int] = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waits_since = 0.0
        self._num_bytes = 0
        self._wait_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, if need be in the place of another."""
        has_room = len(self.connections) < self.max_connections or self._make_room()
        super().connection_made(transport)
        if has_room:
            self._wait(REQUEST_SECONDS)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._wait_no_longer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser. Who sends more than a request can have is cut off."""
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_REQUEST_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins, perhaps while the one before is still being answered. Its reply has today's date."""
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().on_message_begin()
        if self._wait_timer is None:
            self._wait(REQUEST_SECONDS)

    def on_message_complete(self) -> None:
        """The request is whole: now the client waits for us."""
        self._wait_no_longer()
        self._num_bytes = 0
        super().on_message_complete()
        if self._is_idle:  # it was answered before it was whole
            self._wait(KEEP_ALIVE_SECONDS)

    def on_response_complete(self) -> None:
        """The reply is sent: now we wait for the client."""
        super().on_response_complete()
        if self._is_idle and self._wait_timer is None and not self.transport.is_closing():
            self._wait(KEEP_ALIVE_SECONDS)

    def pause_writing(self) -> None:
        """The client reads slowly: as long as it reads at all within SEND_SECONDS it may."""
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _watch_sending(self) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(SEND_SECONDS, self._check_sending, num_unsent)

    def _check_sending(self, num_unsent_before: int) -> None:
        if self.transport.get_write_buffer_size() < num_unsent_before:
            self._watch_sending()
        else:
            self.transport.abort()

    @property
    def _is_idle(self) -> bool:
        """Nothing is being answered."""
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _make_room(self) -> bool:
        others = [other for other in self.connections if isinstance(other, InspectProtocol) and other._is_idle]
        if not others:
            return False
        oldest = min(others, key=lambda other: other._waits_since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _wait(self, seconds: float) -> None:
        self._waits_since = self.loop.time()
        self._wait_timer = self.loop.call_later(seconds, self.transport.abort)

    def _wait_no_longer(self) -> None:
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None


def protocol_of(max_connections: int) -> type[InspectProtocol]:
    """The protocol with another bound."""
    return type("BoundedInspectProtocol", (InspectProtocol,), {"max_connections": max_connections})
