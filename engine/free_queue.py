"""The queue of blocks nobody uses, in the order they will be handed out: a doubly linked list of block ids."""

from collections.abc import Iterator

_OUT = -1


class FreeBlockQueue:
    """Ids 0 … num_blocks - 1, linked through two lists of ints; every operation is O(1).

    The list is a ring around a sentinel whose id is `num_blocks`, so the ends need no special case.
    """

    def __init__(self, num_blocks: int) -> None:
        self._sentinel = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._length = num_blocks

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block_id: int) -> bool:
        return self._next[block_id] != _OUT

    def __iter__(self) -> Iterator[int]:
        block_id = self._next[self._sentinel]
        while block_id != self._sentinel:
            yield block_id
            block_id = self._next[block_id]

    def pop_first(self) -> int:
        """Take the block at the head. The queue must not be empty."""
        assert self._length, "the free queue is empty"
        block_id = self._next[self._sentinel]
        self.remove(block_id)
        return block_id

    def remove(self, block_id: int) -> None:
        """Take a block out from wherever it stands."""
        after, before = self._next[block_id], self._previous[block_id]
        assert after != _OUT, f"block {block_id} is not in the free queue"
        self._next[before] = after
        self._previous[after] = before
        self._next[block_id] = _OUT
        self._length -= 1

    def push_last(self, block_id: int) -> None:
        """Put a block at the tail: it is handed out after all others."""
        self._insert(block_id, self._previous[self._sentinel])

    def push_first(self, block_id: int) -> None:
        """Put a block at the head: it is handed out next."""
        self._insert(block_id, self._sentinel)

    def _insert(self, block_id: int, before: int) -> None:
        assert self._next[block_id] == _OUT, f"block {block_id} is in the free queue already"
        after = self._next[before]
        self._next[before] = self._previous[after] = block_id
        self._next[block_id], self._previous[block_id] = after, before
        self._length += 1
