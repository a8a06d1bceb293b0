"""The blocks of the KV cache: who holds how many references, which are free, and which can be found by hash."""

from collections import Counter
from collections.abc import Iterable, Sequence

from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.free_queue import FreeBlockQueue

MARK_BYTES = 8
"""So many bytes of a hash are recorded."""
NO_MARK = b""


class BlockCountError(VllmObsError):
    """The books of the block pool do not add up: the process must not go on with it."""


class BlockPool:
    """`num_blocks` blocks, each active (referenced), cached (unreferenced, found by hash) or free.

    Unreferenced blocks queue up in the order of their release. Those that hold nothing worth finding go to
    the front, so cached ones are evicted last, and the least recently released of them first.
    `newly_cached` and `newly_evicted` collect (block id, hash) until somebody takes them for the record.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_cached = 0
        self.newly_cached: list[tuple[int, bytes]] = []
        self.newly_evicted: list[tuple[int, bytes]] = []
        self._num_refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._marks = [NO_MARK] * num_blocks
        """The first bytes of the hashes, ready to be recorded slice by slice."""
        self._by_hash: dict[bytes, int] = {}
        self._queue = FreeBlockQueue(num_blocks)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: the free and the cached."""
        return len(self._queue)

    @property
    def num_free(self) -> int:
        """Blocks that nobody references and no hash finds."""
        return len(self._queue) - self.num_cached

    @property
    def num_active(self) -> int:
        """Blocks that a sequence or a plan in flight references."""
        return self.num_blocks - len(self._queue)

    def num_refs(self, block_id: int) -> int:
        """How many tables name the block."""
        return self._num_refs[block_id]

    def slice(self, begin: int, end: int) -> tuple[list[int], list[bytes]]:
        """The references of the blocks from `begin` on, up to `end` or the last, and MARK_BYTES of their hashes.

        Empty for a block that no hash finds.
        """
        return self._num_refs[begin:end], self._marks[begin:end]

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds these tokens after those parents, if there is one."""
        return self._by_hash.get(block_hash)

    def allocate(self, num_blocks: int) -> list[int]:
        """Hand out blocks with one reference each, evicting cached ones when the free ones are used up."""
        assert num_blocks <= self.num_available, f"{num_blocks} blocks asked, {self.num_available} available"
        block_ids = [self._queue.pop_first() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._num_refs[block_id] = 1
            if self._hashes[block_id] is not None:
                self.num_cached -= 1
                self._forget(block_id)
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these cached blocks; they leave the free queue."""
        for block_id in block_ids:
            if self._num_refs[block_id] == 0:
                self._queue.remove(block_id)
                self.num_cached -= 1
            self._num_refs[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop a reference from each block of a table, last first, so that tails are evicted before heads."""
        for block_id in reversed(block_ids):
            assert self._num_refs[block_id] > 0, f"block {block_id} was released twice"
            self._num_refs[block_id] -= 1
            if self._num_refs[block_id]:
                continue
            if self._hashes[block_id] is None:
                self._queue.push_first(block_id)
            else:
                self._queue.push_last(block_id)
                self.num_cached += 1

    def cache(self, block_id: int, block_hash: bytes) -> None:
        """Let a filled, active block be found. A hash that is known already keeps its first block."""
        assert self._num_refs[block_id] > 0, f"block {block_id} is not active"
        if self._hashes[block_id] is None and block_hash not in self._by_hash:
            self._hashes[block_id] = block_hash
            self._marks[block_id] = block_hash[:MARK_BYTES]
            self._by_hash[block_hash] = block_id
            self.newly_cached.append((block_id, block_hash))

    def forget(self, block_id: int) -> None:
        """Let an active block not be found any more; those that hold a reference keep it."""
        assert self._num_refs[block_id] > 0, f"block {block_id} is not active"
        if self._hashes[block_id] is not None:
            self._forget(block_id)

    def reset_cache(self) -> bool:
        """Forget every hash. Refused (False) while any block is active."""
        if self.num_active:
            return False
        for block_id in list(self._by_hash.values()):
            self._forget(block_id)
        self.num_cached = 0
        return True

    def _forget(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        assert block_hash is not None
        del self._by_hash[block_hash]
        self._hashes[block_id] = None
        self._marks[block_id] = NO_MARK
        self.newly_evicted.append((block_id, block_hash))

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Verify every count against the tables that should hold the references.

        Raises BlockCountError that names the first difference. Costs O(blocks): for tests and after an error.
        """
        named = Counter(block_id for table in tables for block_id in table)
        for block_id, num_refs in enumerate(self._num_refs):
            if num_refs != named[block_id]:
                raise BlockCountError(f"block {block_id}: {num_refs} references, {named[block_id]} tables")
        queued = list(self._queue)
        idle = {block_id for block_id, num_refs in enumerate(self._num_refs) if num_refs == 0}
        if len(queued) != len(self._queue) or set(queued) != idle:
            raise BlockCountError(f"free queue: {len(queued)} blocks queued, {len(idle)} unreferenced")
        num_cached = sum(self._hashes[block_id] is not None for block_id in idle)
        if num_cached != self.num_cached:
            raise BlockCountError(f"cached blocks: {self.num_cached} counted, {num_cached} found")
        hashed = {
            block_hash: block_id for block_id, block_hash in enumerate(self._hashes) if block_hash is not None
        }
        if hashed != self._by_hash:
            raise BlockCountError(f"prefix cache: {len(self._by_hash)} hashes kept, {len(hashed)} on blocks")
        if self.num_active + self.num_cached + self.num_free != self.num_blocks:
            raise BlockCountError(f"active, cached and free blocks do not sum to {self.num_blocks}")
