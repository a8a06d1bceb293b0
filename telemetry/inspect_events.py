"""EventHub: sends what is new to every client of a stream of events, and drops the clients that do not read it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

MAX_CLIENTS = 16
MAX_QUEUED_EVENTS = 8
SEND_TIMEOUT_SECONDS = 5.0
"""A client whose socket has taken nothing for so long is gone or asleep."""
RETRY_MS = 2000


def event_bytes(name: str, number: int, content: Any) -> bytes:
    """One event as it is sent; `number` is its id."""
    body = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), body)


async def no_opening() -> AsyncIterator[bytes]:
    """Of a stream whose clients get nothing but what is published."""
    return
    yield b""


Opening = Callable[[], AsyncIterator[bytes]]
"""Gives what one client gets first; it is called in the moment from which on what is published follows that."""


class EventClient:
    """One reader: the events it has yet to be sent, at most `max_queued`."""

    def __init__(self, max_queued: int = MAX_QUEUED_EVENTS) -> None:
        self.events: asyncio.Queue[bytes] = asyncio.Queue(max_queued)
        self.is_dropped = asyncio.Event()

    def offer(self, event: bytes) -> None:
        """Queue an event; a client that is behind by the whole queue is dropped, and may come again."""
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            self.is_dropped.set()


class EventHub:
    """Who listens. An event is encoded once, whatever the number of clients; each may be `max_queued` behind."""

    def __init__(self, max_queued: int = MAX_QUEUED_EVENTS) -> None:
        self.max_queued = max_queued
        self.clients: set[EventClient] = set()
        self.num_dropped = 0

    @property
    def is_full(self) -> bool:
        """Whether another client has to be refused."""
        return len(self.clients) >= MAX_CLIENTS

    def publish(self, name: str, number: int, content: Any) -> None:
        """Send an event to all clients. `number` never falls from event to event."""
        event = event_bytes(name, number, content)
        for client in self.clients:
            client.offer(event)

    def leave(self, client: EventClient) -> None:
        """Forget a client."""
        self.num_dropped += client.is_dropped.is_set()
        self.clients.discard(client)

    def close(self) -> None:
        """End all streams."""
        for client in self.clients:
            client.is_dropped.set()


_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class EventStream:
    """The reply to one client: an endless text/event-stream until the client leaves or is dropped."""

    def __init__(self, hub: EventHub, opening: Opening = no_opening) -> None:
        self._hub = hub
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end."""
        client = EventClient(self._hub.max_queued)
        opening = self._opening()
        self._hub.clients.add(client)
        leaving = [asyncio.ensure_future(_left(receive)), asyncio.ensure_future(client.is_dropped.wait())]
        sending = asyncio.ensure_future(self._send_all(_events_of(client, opening), client, send))
        try:
            await asyncio.wait([*leaving, sending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(client)
            for task in (*leaving, sending):
                task.cancel()
            await asyncio.gather(*leaving, sending, return_exceptions=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, events: AsyncIterator[bytes], client: EventClient, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for event in events:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except TimeoutError:
                client.is_dropped.set()
                return


async def _events_of(client: EventClient, opening: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    async for event in opening:
        yield event
    while not client.is_dropped.is_set():
        yield await client.events.get()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
