"""The block pool: references, the order of reuse, and the prefix cache's map."""

import pytest

from vllm_obs.engine.block_pool import BlockCountError, BlockPool
from vllm_obs.engine.free_queue import FreeBlockQueue

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def levels(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_active, pool.num_cached, pool.num_free


def test_free_queue_keeps_order_through_removals_and_insertions_at_both_ends() -> None:
    queue = FreeBlockQueue(5)
    queue.remove(2)
    queue.remove(0)
    queue.remove(4)
    queue.push_last(0)
    queue.push_first(4)

    assert list(queue) == [4, 1, 3, 0]
    assert len(queue) == 4
    assert 2 not in queue
    assert [queue.pop_first() for _ in range(4)] == [4, 1, 3, 0]
    assert list(queue) == []


def test_free_queue_refuses_a_block_twice() -> None:
    queue = FreeBlockQueue(2)
    with pytest.raises(AssertionError, match="already"):
        queue.push_last(1)
    queue.remove(1)
    with pytest.raises(AssertionError, match="not in the free queue"):
        queue.remove(1)


def test_blocks_are_active_while_referenced_and_free_afterwards() -> None:
    pool = BlockPool(4)
    table = pool.allocate(3)
    assert levels(pool) == (3, 0, 1)

    pool.release(table)
    assert levels(pool) == (0, 0, 4)
    pool.check([])


def test_a_cached_block_is_found_until_it_is_evicted() -> None:
    pool = BlockPool(2)
    table = pool.allocate(2)
    pool.cache(table[0], A)
    pool.release(table)
    assert levels(pool) == (0, 1, 1)
    assert pool.find(A) == table[0]

    assert pool.allocate(1) == [table[1]], "a block that holds nothing goes first"
    assert pool.find(A) == table[0]
    assert pool.allocate(1) == [table[0]]
    assert pool.find(A) is None
    assert levels(pool) == (2, 0, 0)
    assert pool.newly_cached == [(table[0], A)]
    assert pool.newly_evicted == [(table[0], A)]


def test_tails_are_evicted_before_heads_and_the_least_recently_used_first() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for block_id, block_hash in zip([*old, *new], [A, B, C, b"d" * 32], strict=True):
        pool.cache(block_id, block_hash)
    pool.release(old)
    pool.release(new)

    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]


def test_a_hit_keeps_the_block_from_eviction_and_is_shared() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.cache(table[0], A)
    pool.release(table)

    pool.touch(table)
    pool.touch(table)
    assert pool.num_refs(table[0]) == 2
    assert levels(pool) == (1, 0, 1)
    pool.check([table, table])

    pool.release(table)
    assert levels(pool) == (1, 0, 1)
    pool.release(table)
    assert levels(pool) == (0, 1, 1)


def test_the_first_block_of_a_hash_stays_the_one_that_is_found() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.cache(first, A)
    pool.cache(second, A)
    assert pool.find(A) == first

    pool.release([first, second])
    assert levels(pool) == (0, 1, 1)
    pool.check([])


def test_the_cache_is_reset_only_when_nothing_is_active() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.cache(table[0], A)
    assert pool.reset_cache() is False
    assert pool.find(A) == table[0]

    pool.release(table)
    assert pool.reset_cache() is True
    assert pool.find(A) is None
    assert levels(pool) == (0, 0, 2)
    pool.check([])


def test_a_block_cannot_be_released_twice() -> None:
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.release(table)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(table)


@pytest.mark.parametrize(
    ("tables", "message"),
    [([], "1 references, 0 tables"), ([[0], [0]], "1 references, 2 tables")],
    ids=["lost", "shared wrongly"],
)
def test_check_names_a_block_whose_references_do_not_match_the_tables(
    tables: list[list[int]], message: str
) -> None:
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    with pytest.raises(BlockCountError, match=message):
        pool.check(tables)


def test_check_finds_a_wrong_count_of_cached_blocks() -> None:
    pool = BlockPool(2)
    pool.num_cached += 1
    with pytest.raises(BlockCountError, match="1 counted, 0 found"):
        pool.check([])
