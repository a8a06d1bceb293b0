"""The block map says who holds which block, now and after any of the last steps, and mends itself after a loss."""

import pytest
from fact_blocks import FactBlocks
from fact_stream import FactStream
from hypothesis import given, settings
from random_run import random_runs

from vllm_obs.telemetry.block_map import MAX_ENDED_TABLES, BlockMap
from vllm_obs.telemetry.block_view import BlockLevels, BlockView, PrefixHit
from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    BlocksKeyframe,
    Record,
    RequestKeyframe,
)

often = settings(max_examples=60, deadline=None, database=None)


def apply(blocks: BlockMap, record: Record) -> None:
    if isinstance(record, BlocksChanged):
        blocks.changed(record)
    elif isinstance(record, BlocksCached):
        blocks.cached(record)
    elif isinstance(record, BlocksKeyframe):
        assert blocks.blocks_keyframe(record) == 0
    elif isinstance(record, RequestKeyframe):
        assert not blocks.request_keyframe(record)


def two_sequences() -> tuple[BlockMap, FactBlocks]:
    """Eight blocks of four tokens: `a` has three, then `b` shares two of them and has one of its own."""
    pool, blocks = FactBlocks(8, 4), BlockMap(8)
    pool.grow("a", 10)
    pool.fill("a", 10)
    for record in pool.take_records(1):
        apply(blocks, record)
    pool.grow("b", 9, num_cached_tokens=8)
    for record in pool.take_records(2):
        apply(blocks, record)
    return blocks, pool


def test_tables_owners_and_levels_follow_the_records() -> None:
    blocks, pool = two_sequences()
    view = blocks.now()
    assert (blocks.table("a"), blocks.table("b")) == ([0, 1, 2], [0, 1, 3])
    assert view.owners() == {0: ["a", "b"], 1: ["a", "b"], 2: ["a"], 3: ["b"]}
    assert view.num_refs == pool.num_refs == [2, 2, 1, 1, 0, 0, 0, 0]
    assert blocks.levels == BlockLevels(num_active=4, num_cached=0, num_free=4)
    assert blocks.hit("b") == PrefixHit(2, [0, 1], [(1).to_bytes(8, "big"), (2).to_bytes(8, "big")])
    assert blocks.hit("a") is None


def test_a_released_sequence_keeps_its_last_table_and_leaves_cached_blocks() -> None:
    blocks, pool = two_sequences()
    for request_id in ("a", "b"):
        pool.free(request_id)
    for record in pool.take_records(3):
        apply(blocks, record)
    view = blocks.now()
    assert (blocks.table("a"), blocks.table("b"), view.tables) == ([0, 1, 2], [0, 1, 3], {})
    assert [view.state_of(block_id) for block_id in range(4)] == ["cached", "cached", "free", "free"]
    assert blocks.levels == BlockLevels(0, 2, 6)


def test_the_map_can_be_seen_as_it_was_after_an_earlier_step() -> None:
    blocks, pool = two_sequences()
    pool.free("a")
    for record in pool.take_records(3):
        apply(blocks, record)
    hashes = [(1).to_bytes(8, "big"), (2).to_bytes(8, "big"), *[b""] * 6]
    assert blocks.at(1) == BlockView(1, [1, 1, 1, 0, 0, 0, 0, 0], hashes, {"a": [0, 1, 2]})
    assert blocks.at(0) == BlockView(0, [0] * 8, [b""] * 8, {})
    assert blocks.at(99) == blocks.now()
    assert (blocks.table_at("a", 2), blocks.table_at("a", 3), blocks.table_at("b", 1)) == ([0, 1, 2], None, None)


def test_blocks_that_are_given_back_and_handed_out_in_one_step_change_hands() -> None:
    blocks = BlockMap(4)
    blocks.changed(BlocksChanged(1, ["a"], [[0, 1]], [[]], [0]))
    blocks.changed(BlocksChanged(2, ["b", "a"], [[1, 0], []], [[], [0, 1]], [0, 0]))
    assert (blocks.now().tables, blocks.now().num_refs) == ({"b": [1, 0]}, [1, 1, 0, 0])
    blocks.changed(BlocksChanged(3, ["b", "b"], [[2], []], [[], [1, 0]], [0, 0]))
    assert (blocks.now().tables, blocks.now().num_refs) == ({"b": [2]}, [0, 0, 1, 0])


@often
@given(random_runs())
def test_every_step_of_a_run_can_be_seen_again(stream: FactStream) -> None:
    blocks = BlockMap(stream.num_blocks)
    seen: dict[int, BlockView] = {}
    for record in stream.records:
        apply(blocks, record)
        seen[blocks.step] = blocks.now()
    for step, view in seen.items():
        assert blocks.at(step) == view
        for request_id in stream.sequences:
            assert blocks.table_at(request_id, step) == view.tables.get(request_id)


def test_keyframes_mend_a_map_that_lost_records() -> None:
    blocks, pool = two_sequences()
    pool.grow("lost", 6)
    pool.free("a")
    pool.take_records(3)
    blocks.lost()
    assert (blocks.is_exact, blocks.at(2)) == (False, None)
    pool.grow("b", 20)
    for record in pool.take_records(4):
        apply(blocks, record)
    assert blocks.blocks_keyframe(pool.keyframe(4, 0, 5)) == 0
    assert blocks.blocks_keyframe(pool.keyframe(4, 5, 3)) == 0
    assert not blocks.is_exact
    blocks.keep_only({"b", "lost"})
    assert not blocks.request_keyframe(RequestKeyframe(4, "b", True, pool.tables["b"], 9, 9, 0))
    assert not blocks.is_exact
    assert not blocks.request_keyframe(RequestKeyframe(4, "lost", True, pool.tables["lost"], 6, 6, 0))
    assert blocks.is_exact
    assert (blocks.now().tables, blocks.now().num_refs) == (pool.tables, pool.num_refs)
    assert blocks.levels == pool.levels


def test_a_keyframe_that_contradicts_an_exact_map_says_so() -> None:
    blocks, pool = two_sequences()
    keyframe = pool.keyframe(2, 0, 8)
    counts = [3, 3, *keyframe.reference_counts[2:]]
    assert blocks.blocks_keyframe(keyframe._replace(reference_counts=counts)) == 2
    assert blocks.request_keyframe(RequestKeyframe(2, "a", True, [0, 1], 9, 9, 0))
    assert blocks.table("a") == [0, 1]


def test_a_waiting_sequence_has_no_table() -> None:
    blocks = BlockMap(2)
    assert not blocks.request_keyframe(RequestKeyframe(1, "waiting", False, [], 0, 9, 0))
    assert (blocks.table("waiting"), blocks.now().tables) == (None, {})


def test_a_table_that_names_blocks_nobody_heard_of_makes_the_map_as_large() -> None:
    blocks = BlockMap()
    assert not blocks.request_keyframe(RequestKeyframe(1, "a", True, [2, 7], 20, 20, 0))
    assert (blocks.num_blocks, blocks.held_by("a"), blocks.held_by("b")) == (8, [2, 7], ())
    assert blocks.look([7, 0]) == ([0, 0], [b"", b""])


@pytest.mark.parametrize("num_sequences", [MAX_ENDED_TABLES + 10])
def test_what_is_kept_of_the_past_is_bounded(num_sequences: int) -> None:
    blocks = BlockMap(4)
    for step in range(1, num_sequences + 1):
        request_id = f"r-{step}"
        blocks.changed(BlocksChanged(step, [request_id], [[0]], [[]], [1]))
        blocks.changed(BlocksChanged(step, [request_id], [[]], [[0]], [0]))
    kept = [step for step in range(1, num_sequences + 1) if blocks.table(f"r-{step}") is not None]
    assert len(kept) == MAX_ENDED_TABLES
    assert [step for step in range(1, num_sequences + 1) if blocks.hit(f"r-{step}")] == kept
    assert blocks.first_step == num_sequences - 4096
    assert blocks.at(blocks.first_step - 1) is None
    assert blocks.at(blocks.first_step) is not None
