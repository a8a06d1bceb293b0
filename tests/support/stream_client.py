"""Clients of the inspector's streams: what was sent, read as a browser reads it, and the picture that it makes."""

import asyncio
import json
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from vllm_obs.telemetry.inspect_events import EventClient, EventHub, EventStream

Event = tuple[str, Any]


def events_in(text: bytes) -> list[Event]:
    """(name, data) of each event in a stream's text."""
    found: list[Event] = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in fields:
            assert int(fields["id"]) >= 0
            found.append((fields["event"], json.loads(fields["data"])))
    return found


class StreamClient:
    """A client of a hub without a socket; `events` are those that have come."""

    def __init__(self, hub: EventHub, opening: AsyncIterator[bytes]) -> None:
        self.events: list[Event] = []
        self._hub = hub
        self._opening = opening
        self._client = EventClient(100_000)
        hub.clients.add(self._client)

    async def read(self) -> list[Event]:
        """All that has come since."""
        parts = [part async for part in self._opening]
        while not self._client.events.empty():
            parts.append(self._client.events.get_nowait())
        new = events_in(b"".join(parts))
        self.events += new
        return new

    def leave(self) -> None:
        """Listen no longer."""
        self._hub.leave(self._client)


@dataclass
class DrawnBlocks:
    """The blocks as a client has them after the events of a stream."""

    states: list[int] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    step: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def take(self, name: str, content: dict[str, Any]) -> None:
        """Apply a `map` or `changes`; other events are of no matter here."""
        if name not in ("map", "changes"):
            return
        self.step = content["step"]
        self.told = {key: content[key] for key in ("levels", "is_exact")}
        names = {int(number): request_id for number, request_id in content["names"].items()}
        if name == "map":
            self._names = {0: "", **names}
            self.states, self.refs = list(b64decode(content["states"])), list(b64decode(content["refs"]))
            self.owners = [self._names[number] for number in _numbers(content["owners"])]
            self.changed = _numbers(content["changed_step"])
            return
        assert not self._names.keys() & names.keys(), "a number was given twice"
        self._names |= names
        columns = zip(content["ids"], content["states"], content["refs"], content["owners"], strict=True)
        for block_id, state, num_refs, owner in columns:
            self.states[block_id], self.refs[block_id] = state, num_refs
            self.owners[block_id], self.changed[block_id] = self._names[owner], content["step"]


def _numbers(text: str) -> list[int]:
    numbers = array("I", b64decode(text))
    return list(numbers)


class StreamSocket:
    """A client of an EventStream over a fake socket that takes what it is sent, or never does."""

    def __init__(self, response: EventStream, takes: bool = True) -> None:
        self.received = b""
        self._takes = takes
        self._left = asyncio.Event()
        self.task = asyncio.create_task(response({"type": "http"}, self._receive, self._send))

    @property
    def events(self) -> list[Event]:
        return events_in(self.received)

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 10)

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            if not self._takes:
                await asyncio.sleep(3600)
            self.received += message["body"]
