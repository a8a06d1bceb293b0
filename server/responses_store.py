"""ResponseStore: the responses that can be asked for again, in bounded memory."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from vllm_obs.server.responses_events import EventLog
from vllm_obs.server.responses_resource import Resource
from vllm_obs.server.schema_responses_items import Item

ITEM_OVERHEAD_BYTES = 250
RESPONSE_OVERHEAD_BYTES = 1000
"""What keeping one costs beside its JSON."""


class Context(NamedTuple):
    """What a response is made from, item by item; the first `num_before` are those of the turns before."""

    items: tuple[bytes, ...]
    num_before: int = 0


@dataclass(frozen=True)
class StoredResponse:
    """A response that has ended, as JSON. `log` is there where its events can be asked for."""

    resource: bytes
    context: Context
    output: tuple[bytes, ...]
    is_background: bool
    log: EventLog | None = None

    @classmethod
    def of(cls, resource: Resource, context: Context, log: EventLog | None = None) -> "StoredResponse":
        """The response to be stored."""
        output = as_json(resource["output"])
        return cls(orjson.dumps(resource), context, output, bool(resource["background"]), log)

    @property
    def history(self) -> tuple[bytes, ...]:
        """What a next response goes on from."""
        return self.context.items + self.output

    @property
    def own(self) -> tuple[bytes, ...]:
        """The items that no response before it had."""
        return self.context.items[self.context.num_before :] + self.output

    @property
    def num_bytes(self) -> int:
        """What it counts; items that several responses share count for each of them."""
        num_log_bytes = self.log.num_bytes if self.log is not None else 0
        return RESPONSE_OVERHEAD_BYTES + len(self.resource) + num_log_bytes + num_item_bytes(self.history)


def as_json(items: Sequence[Item]) -> tuple[bytes, ...]:
    """Items as they are stored."""
    return tuple(map(orjson.dumps, items))


def num_item_bytes(items: Sequence[bytes]) -> int:
    """What stored items count."""
    return sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items)


def key_of(item_id: str) -> bytes:
    """What a stored item with this id begins with."""
    return b'{"id":' + orjson.dumps(item_id)


def _key(item: bytes) -> bytes:
    return item[: item.index(b',"type":')]


@dataclass
class _Shelf:
    """The responses of one owner, the one not asked for longest first, and their items by how they begin."""

    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    items: dict[bytes, bytes] = field(default_factory=dict)
    num_bytes: int = 0

    def put(self, response_id: str, stored: StoredResponse) -> None:
        self.responses[response_id] = stored
        self.items.update((_key(item), item) for item in stored.own)
        self.num_bytes += stored.num_bytes

    def take(self, response_id: str) -> StoredResponse | None:
        stored = self.responses.pop(response_id, None)
        if stored is not None:
            self.num_bytes -= stored.num_bytes
            for item in stored.own:
                if self.items.get(_key(item)) is item:
                    del self.items[_key(item)]
        return stored


class ResponseStore:
    """Keeps at most `max_responses` and `max_bytes`. Nobody sees what another owner stored.

    Where there is no room, the owner who takes up most gives way, with what was not asked for longest.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._max_responses = max_responses
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return sum(len(shelf.responses) for shelf in self._shelves.values())

    @property
    def num_bytes(self) -> int:
        """What all of them count."""
        return sum(shelf.num_bytes for shelf in self._shelves.values())

    def put(self, owner: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response, if it is not larger than everything together may be."""
        self.delete(owner, response_id)
        num_bytes = stored.num_bytes
        if num_bytes > self.max_bytes:
            return
        while self.num_bytes + num_bytes > self.max_bytes:
            self._give_way(max(self._shelves, key=lambda owner: self._shelves[owner].num_bytes))
        while len(self) >= self._max_responses:
            self._give_way(max(self._shelves, key=lambda owner: len(self._shelves[owner].responses)))
        self._shelves.setdefault(owner, _Shelf()).put(response_id, stored)

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """A response of this owner's."""
        shelf = self._shelves.get(owner)
        if shelf is None or response_id not in shelf.responses:
            return None
        shelf.responses.move_to_end(response_id)
        return shelf.responses[response_id]

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response of this owner's; whether there was one."""
        shelf = self._shelves.get(owner)
        return shelf is not None and self._take(owner, shelf, response_id)

    def item(self, owner: str, item_id: str) -> bytes | None:
        """An item of one of this owner's responses."""
        shelf = self._shelves.get(owner)
        return shelf.items.get(key_of(item_id)) if shelf is not None else None

    def _give_way(self, owner: str) -> None:
        shelf = self._shelves[owner]
        self._take(owner, shelf, next(iter(shelf.responses)))

    def _take(self, owner: str, shelf: _Shelf, response_id: str) -> bool:
        stored = shelf.take(response_id)
        if not shelf.responses:
            del self._shelves[owner]
        return stored is not None
