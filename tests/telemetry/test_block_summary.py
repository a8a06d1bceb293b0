"""Blocks are summed to what people ask: levels, sharing, empty room, who holds most; now and after a past step."""

import pytest
from fact_stream import FactStream
from synthetic_run import feed

from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.block_summary import block_summary
from vllm_obs.telemetry.inspect_block import one_block, request_cache
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.records import RequestSubmitted
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import RecordsLost


def shared_run() -> tuple[RunState, FactStream]:
    """Blocks of 4: `a` has 10 tokens in three blocks, then `b` comes with 9, of which it found 8; 64 blocks."""
    stream = FactStream()
    stream.describe()
    stream.submit("a", num_prompt_tokens=10)
    stream.step({"a": 10})
    stream.submit("b", num_prompt_tokens=9)
    stream.step({"b": 1}, cached={"b": 8})
    return feed(stream.facts), stream


def test_sums_are_of_all_blocks() -> None:
    state, stream = shared_run()
    summary = block_summary(state, "0", None, stream.now)
    assert summary["levels"] == {"num_active": 4, "num_cached": 0, "num_free": 60}
    assert summary["sharing"] == {"num_shared_blocks": 2, "num_saved_blocks": 2, "max_refs": 2}
    # a fills 10 of 12, b 9 of 12; two blocks of each are the same.
    assert summary["fragmentation"] == {
        "num_slots": 16,
        "num_empty_slots": 5,
        "share": 5 / 16,
        "num_unknown_requests": 0,
    }
    assert (summary["num_blocks"], summary["block_size"], summary["num_holders"]) == (64, 4, 2)
    assert (summary["step"], summary["last_step"], summary["is_exact"]) == (2, 2, True)


def test_holders_come_with_whom_they_share() -> None:
    state, stream = shared_run()
    first, second = block_summary(state, "0", None, stream.now)["holders"]
    taken_at = state.find("a")[0].taken_at
    assert first == {
        "request_id": "a",
        "num_blocks": 3,
        "share": 3 / 64,
        "num_shared_blocks": 2,
        "num_sharers": 1,
        "sharers": ["b"],
        "num_tokens": 10,
        "num_empty_slots": 2,
        "age_seconds": (stream.now - taken_at) / 1e9,
    }
    assert (second["request_id"], second["sharers"]) == ("b", ["a"])


def test_past_step_is_summed_as_it_was() -> None:
    state, stream = shared_run()
    summary = block_summary(state, "0", 1, stream.now)
    assert (summary["step"], summary["num_holders"]) == (1, 1)
    assert summary["levels"] == {"num_active": 3, "num_cached": 0, "num_free": 61}
    assert summary["sharing"] == {"num_shared_blocks": 0, "num_saved_blocks": 0, "max_refs": 1}
    assert summary["fragmentation"]["num_empty_slots"] == 2
    with pytest.raises(InspectError, match="there is no engine '7'"):
        block_summary(state, "7", None, stream.now)


def test_single_block_names_its_holders_and_who_made_it() -> None:
    state, _ = shared_run()
    assert one_block(state, "0", 0, None) == {
        "engine": "0",
        "block_id": 0,
        "step": 2,
        "state": "active",
        "num_refs": 2,
        "hash": (1).to_bytes(8, "big").hex(),
        "num_holders": 2,
        "holders": [{"request_id": "a", "place": 0}, {"request_id": "b", "place": 0}],
        "changed_step": 2,
        "made_by": "a",
        "made_step": 1,
    }
    assert one_block(state, "0", 0, 1)["num_holders"] == 1
    assert one_block(state, "0", 40, None)["changed_step"] is None
    with pytest.raises(InspectError, match="block 64 is not one of the 64 of engine 0"):
        one_block(state, "0", 64, None)


def test_table_of_a_request_says_block_by_block_who_else_holds_it() -> None:
    state, _ = shared_run()
    (row,) = request_cache(state, "b", None)["sequences"]
    assert (row["block_ids"], row["num_refs"], row["num_tokens"]) == ([0, 1, 3], [2, 2, 1], 9)
    assert (row["others"], row["sharers"], row["is_held"]) == ([[0], [0], []], ["a"], True)
    (past,) = request_cache(state, "a", 1)["sequences"]
    assert (past["block_ids"], past["num_refs"]) == ([0, 1, 2], [1, 1, 1])
    (before,) = request_cache(state, "b", 1)["sequences"]
    assert before["block_ids"] is None
    with pytest.raises(InspectError, match="no request of the last minutes"):
        request_cache(state, "nobody", None)


def test_ended_request_keeps_its_last_table() -> None:
    state, stream = shared_run()
    state = feed(stream.facts + stream.finish("a"))
    (row,) = request_cache(state, "a", None)["sequences"]
    assert (row["block_ids"], row["is_held"], row["state"]) == ([0, 1, 2], False, "ended")


def test_holders_of_whom_only_the_core_told_are_known_too() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("a", num_prompt_tokens=10)
    stream.step({"a": 10})
    state = feed(fact for fact in stream.facts if not isinstance(fact[1], RequestSubmitted))
    assert list(state.book.orphans) == ["a"]
    summary = block_summary(state, "0", None, stream.now)
    (holder,) = summary["holders"]
    assert (holder["num_tokens"], holder["num_empty_slots"]) == (10, 2)
    assert summary["fragmentation"]["num_unknown_requests"] == 0


def test_a_look_at_now_copies_nothing_and_searches_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    state, stream = shared_run()
    ids = [request_id for request_id, _ in state.engines["0"].blocks.now().tables.items()]
    whole = block_summary(state, "0", None, stream.now)
    # Nobody knows whose the tables are.
    state.book.live.clear()
    monkeypatch.setattr(RunState, "find", lambda self, name: pytest.fail("everything kept is looked through"))
    monkeypatch.setattr(BlockMap, "now", lambda self: pytest.fail("all blocks are copied"))
    summary = block_summary(state, "0", None, stream.now)
    assert [holder["request_id"] for holder in summary["holders"]] == ids
    assert summary["fragmentation"]["num_unknown_requests"] == len(ids)
    assert (summary["levels"], summary["sharing"]) == (whole["levels"], whole["sharing"])
    assert one_block(state, "0", 0, None)["num_holders"] == 2


def test_nobody_knows_when_a_block_changed_last_after_a_loss() -> None:
    state, stream = shared_run()
    state.apply(stream.engine, RecordsLost(3))
    assert one_block(state, "0", 0, None)["changed_step"] is None
