"""The prefix book knows who made what is found in the cache and what was lost since, and since when it knows."""

import pytest

from vllm_obs.telemetry import prefix_book
from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.prefix_book import Origin, PrefixBook, PrefixStory
from vllm_obs.telemetry.records import BlocksCached, BlocksChanged

A, B, C = b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"


class Pool:
    """A block map and the book beside it, as an engine keeps them."""

    def __init__(self) -> None:
        self.blocks = BlockMap(8)
        self.book = PrefixBook()

    def allocate(self, step: int, request_id: str, block_ids: list[int], num_hits: int = 0) -> None:
        self._change(BlocksChanged(step, [request_id], [block_ids], [[]], [num_hits]))

    def free(self, step: int, request_id: str, block_ids: list[int]) -> None:
        self._change(BlocksChanged(step, [request_id], [[]], [block_ids], [0]))

    def cache(self, step: int, *contents: tuple[int, bytes], evicted: bool = False) -> None:
        record = BlocksCached(step, [each[0] for each in contents], [each[1] for each in contents], evicted)
        self.blocks.cached(record)
        self.book.cached(record)

    def _change(self, record: BlocksChanged) -> None:
        self.blocks.changed(record)
        self.book.changed(record, self.blocks)


def pool_with_a_prefix() -> Pool:
    """`first` made A and B in step 1."""
    pool = Pool()
    pool.allocate(1, "first", [0, 1, 2])
    pool.cache(1, (0, A), (1, B))
    return pool


def test_hits_name_who_made_them_and_the_first_miss_is_awaited() -> None:
    pool = pool_with_a_prefix()
    pool.allocate(2, "second", [0, 1, 3], num_hits=2)
    story = pool.book.story("second")
    assert story == PrefixStory(2, [Origin("first", 1), Origin("first", 1)], miss_block_id=3)
    pool.cache(3, (3, C))
    assert story is not None
    assert (story.miss_hash, story.earlier) == (C, None)
    assert pool.book.origin(C) == Origin("second", 3)


def test_content_that_was_evicted_before_is_told_with_its_maker() -> None:
    pool = pool_with_a_prefix()
    pool.free(2, "first", [0, 1, 2])
    pool.allocate(3, "greedy", [0, 1])
    pool.cache(3, (0, A), (1, B), evicted=True)
    pool.allocate(5, "late", [4, 5])
    pool.cache(6, (4, A))
    story = pool.book.story("late")
    assert story is not None
    assert (story.num_hits, story.miss_hash, story.earlier) == (0, A, Origin("first", 1, evicted_step=3))
    assert pool.book.origin(A) == Origin("late", 6)


def test_table_that_grows_is_no_new_admission_and_one_that_came_back_is() -> None:
    pool = pool_with_a_prefix()
    pool.allocate(2, "first", [3])
    assert pool.book.story("first") == PrefixStory(1, [], miss_block_id=0, miss_hash=A)
    pool.free(3, "first", [0, 1, 2, 3])
    pool.allocate(4, "first", [0, 1, 4], num_hits=2)
    assert pool.book.story("first") == PrefixStory(4, [Origin("first", 1)] * 2, miss_block_id=4)


def test_block_that_is_handed_on_unfilled_is_awaited_no_more() -> None:
    pool = Pool()
    pool.allocate(1, "gone", [0])
    pool.free(1, "gone", [0])
    pool.allocate(2, "next", [0])
    pool.cache(2, (0, A))
    gone = pool.book.story("gone")
    assert gone is not None
    assert gone.miss_hash == b""
    assert pool.book.origin(A) == Origin("next", 2)


def test_after_a_loss_it_begins_anew() -> None:
    pool = pool_with_a_prefix()
    pool.book.begin(7)
    assert (pool.book.first_step, pool.book.origin(A), len(pool.book)) == (7, None, 0)
    pool.allocate(8, "second", [0, 3], num_hits=1)
    assert pool.book.story("second") == PrefixStory(8, [Origin("", 0)], miss_block_id=3)


def test_only_so_many_origins_and_stories_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_book, "MAX_ORIGINS", 2)
    monkeypatch.setattr(prefix_book, "MAX_STORIES", 2)
    pool = Pool()
    for step, (name, content) in enumerate((("x", A), ("y", B), ("z", C)), 1):
        pool.allocate(step, name, [step])
        pool.cache(step, (step, content))
    assert (pool.book.origin(A), pool.book.origin(C), len(pool.book)) == (None, Origin("z", 3), 2)
    assert pool.book.first_step == 2, "what was cached in step 1 is not known any more"
    assert (pool.book.story("x") is None, pool.book.story("z") is None) == (True, False)
