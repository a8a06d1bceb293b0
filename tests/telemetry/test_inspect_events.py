"""Listeners get every event in order, and one that does not keep up is dropped without holding up the others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from vllm_obs.telemetry import inspect_events
from vllm_obs.telemetry.inspect_events import (
    MAX_QUEUED_EVENTS,
    EventHub,
    EventStream,
    Opening,
    event_bytes,
    no_opening,
)

Reading = Callable[[bytes], Coroutine[Any, Any, None]]


class Listener:
    """A client of the hub over a fake socket; `take` is what its socket does with each part."""

    def __init__(self, hub: EventHub, take: Reading | None = None, opening: Opening = no_opening) -> None:
        self.received = b""
        self.has_ended = False
        self._left = asyncio.Event()
        self._take = take
        self.task = asyncio.create_task(EventStream(hub, opening)({"type": "http"}, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.has_ended = not message["more_body"]
            if self._take is not None:
                await self._take(message["body"])
            self.received += message["body"]


async def asleep(body: bytes) -> None:
    await asyncio.sleep(3600)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_every_listener_gets_every_event() -> None:
    async def scenario() -> None:
        hub = EventHub()
        listeners = [Listener(hub), Listener(hub)]
        await settled()
        for number in range(3):
            hub.publish("state", number, {"number": number})
            await settled()
        hub.close()
        await asyncio.wait_for(asyncio.gather(*(listener.task for listener in listeners)), 10)
        expected = b"retry: 2000\n\n" + b"".join(
            b'id: %d\nevent: state\ndata: {"number":%d}\n\n' % (number, number) for number in range(3)
        )
        assert [listener.received for listener in listeners] == [expected, expected]
        assert all(listener.has_ended for listener in listeners)
        assert not hub.clients

    asyncio.run(scenario())


def test_one_that_leaves_is_forgotten_and_not_counted_as_dropped() -> None:
    async def scenario() -> None:
        hub = EventHub()
        listener = Listener(hub)
        await settled()
        listener.leave()
        await asyncio.wait_for(listener.task, 10)
        assert (hub.clients, hub.num_dropped) == (set(), 0)

    asyncio.run(scenario())


def test_one_whose_queue_is_full_is_dropped_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_events, "SEND_TIMEOUT_SECONDS", 0.05)

    async def scenario() -> None:
        hub = EventHub()
        slow, quick = Listener(hub, asleep), Listener(hub)
        await settled()
        for number in range(MAX_QUEUED_EVENTS + 1):
            hub.publish("state", number, {})
            await settled()
        await asyncio.wait_for(slow.task, 10)
        assert hub.num_dropped == 1
        assert len(hub.clients) == 1
        assert quick.received.count(b"event: state") == MAX_QUEUED_EVENTS + 1
        quick.leave()
        await asyncio.wait_for(quick.task, 10)

    asyncio.run(scenario())


def test_one_whose_socket_takes_nothing_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_events, "SEND_TIMEOUT_SECONDS", 0.05)

    async def scenario() -> None:
        hub = EventHub()
        slow = Listener(hub, asleep)
        await asyncio.wait_for(slow.task, 10)
        assert (hub.clients, hub.num_dropped) == (set(), 1)

    asyncio.run(scenario())


def test_what_is_published_while_a_listener_gets_its_opening_follows_it() -> None:
    async def scenario() -> None:
        hub = EventHub(max_queued=2)
        is_open = asyncio.Event()

        async def opening() -> AsyncIterator[bytes]:
            yield b"first\n\n"
            await is_open.wait()
            yield b"second\n\n"

        listener = Listener(hub, opening=opening)
        await settled()
        for number in range(2):
            hub.publish("state", number, {})
        is_open.set()
        await settled()
        hub.close()
        await asyncio.wait_for(listener.task, 10)
        published = b"".join(event_bytes("state", number, {}) for number in range(2))
        assert listener.received == b"retry: 2000\n\nfirst\n\nsecond\n\n" + published
        assert not hub.clients

    asyncio.run(scenario())
