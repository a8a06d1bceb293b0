"""What is stored stays within its bounds, belongs to somebody, and gives way where it was not asked for."""

from typing import Any

import orjson

from vllm_obs.server.responses_events import EventLog
from vllm_obs.server.responses_store import (
    ITEM_OVERHEAD_BYTES,
    RESPONSE_OVERHEAD_BYTES,
    Context,
    ResponseStore,
    StoredResponse,
)


def item(id_: str, text: str = "") -> dict[str, Any]:
    return {"id": id_, "type": "message", "content": text}


def stored(name: str, text: str = "", log: EventLog | None = None) -> StoredResponse:
    resource = {"id": name, "background": False, "output": [item(f"out-{name}", text)]}
    return StoredResponse.of(resource, Context((orjson.dumps(item(f"in-{name}")),)), log)


def test_its_size_is_what_it_holds() -> None:
    log = EventLog()
    log.emit("x", {})
    response = stored("a", "text", log)
    held = [response.resource, *response.context.items, *response.output]
    overhead = RESPONSE_OVERHEAD_BYTES + 2 * ITEM_OVERHEAD_BYTES + log.num_bytes
    assert response.num_bytes == sum(map(len, held)) + overhead


def test_the_number_is_bounded_and_the_one_not_asked_for_longest_goes() -> None:
    store = ResponseStore(max_responses=3, max_bytes=10**6)
    for name in "abc":
        store.put("o", name, stored(name))
    assert store.get("o", "a") is not None
    store.put("o", "d", stored("d"))
    assert [name for name in "abcd" if store.get("o", name) is None] == ["b"]
    assert len(store) == 3


def test_the_bytes_are_bounded() -> None:
    size = stored("x", "y" * 1000).num_bytes
    store = ResponseStore(max_responses=10**6, max_bytes=int(3.5 * size))
    for number in range(100):
        store.put("o", str(number), stored(str(number), "y" * 1000))
        assert store.num_bytes <= store.max_bytes
    assert [number for number in range(100) if store.get("o", str(number)) is not None] == [97, 98, 99]
    store.put("o", "huge", stored("huge", "y" * 10_000))
    assert store.get("o", "huge") is None
    for number in range(100):
        store.delete("o", str(number))
    assert (len(store), store.num_bytes) == (0, 0)


def test_an_owner_who_stores_much_pushes_out_nobody_else() -> None:
    store = ResponseStore(max_responses=5, max_bytes=10**6)
    store.put("quiet", "q", stored("q"))
    for number in range(50):
        store.put("busy", str(number), stored(str(number)))
    assert store.get("quiet", "q") is not None
    assert store.get("busy", "49") is not None
    assert len(store) == 5


def test_nothing_is_seen_by_another_owner() -> None:
    store = ResponseStore(max_responses=5, max_bytes=10**6)
    store.put("a", "r", stored("r"))
    assert store.get("b", "r") is None
    assert store.item("b", "out-r") is None
    assert not store.delete("b", "r")
    assert store.get("a", "r") is not None


def test_items_are_found_as_long_as_their_response_is_there() -> None:
    store = ResponseStore(max_responses=5, max_bytes=10**6)
    store.put("a", "r", stored('r,"type":', "text"))
    found = store.item("a", 'out-r,"type":')
    assert found is not None
    assert orjson.loads(found)["content"] == "text"
    assert store.item("a", "out-r") is None
    store.delete("a", "r")
    assert store.item("a", 'out-r,"type":') is None


def test_storing_again_replaces() -> None:
    store = ResponseStore(max_responses=5, max_bytes=10**6)
    for text in ("one", "two"):
        store.put("a", "r", stored("r", text))
    response = store.get("a", "r")
    assert response is not None
    assert (orjson.loads(response.output[0])["content"], len(store)) == ("two", 1)
    assert store.num_bytes == response.num_bytes
