"""BlockMap: which sequences hold which KV blocks, and which blocks are active, cached or free, now and before."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from vllm_obs.telemetry.block_catching import Catching
from vllm_obs.telemetry.block_undo import BlockBefore, BlockChange, BlockUndo, TableBefore, TableGrown
from vllm_obs.telemetry.block_view import NO_HASH, BlockCopy, BlockLevels, BlockView, PrefixHit
from vllm_obs.telemetry.records import BlocksCached, BlocksChanged, BlocksKeyframe, RequestKeyframe

MAX_ENDED_TABLES = 10_000

T = TypeVar("T")


class BlockMap:
    """The blocks of one engine process from what it recorded; of `num_blocks` blocks, 0 until that is known.

    `is_exact` says that no record is missing. After a loss keyframes mend it slice by slice: blocks that were not
    heard of keep what they had, and it is exact again when every block and every table has been told.
    """

    def __init__(self, num_blocks: int = 0) -> None:
        self.step = 0
        self._num_refs: list[int] = []
        self._hashes: list[bytes] = []
        self._changed = array("q")
        """The last step that is known to have changed each block, 0 where none is."""
        self._num_active = 0
        self._num_cached = 0
        self._tables: dict[str, list[int]] = {}
        self._ended: OrderedDict[str, list[int]] = OrderedDict()
        self._hits: OrderedDict[str, PrefixHit] = OrderedDict()
        self._undo = BlockUndo()
        self._catching: Catching | None = None
        self._is_resized = False
        self.resize(num_blocks)

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self._num_refs)

    @property
    def is_exact(self) -> bool:
        """Whether all that happened to the blocks is in it."""
        return self._is_resized and self._catching is None

    @property
    def levels(self) -> BlockLevels:
        """The sums over all blocks."""
        return BlockLevels(
            self._num_active, self._num_cached, self.num_blocks - self._num_active - self._num_cached
        )

    @property
    def first_step(self) -> int:
        """The oldest step that `at` can restore."""
        return self._undo.first_step

    def resize(self, num_blocks: int) -> None:
        """The engine described itself: this many blocks, of which those not heard of are free."""
        self._is_resized = self._is_resized or num_blocks > 0
        self._grow(num_blocks)

    def table(self, request_id: str) -> list[int] | None:
        """The block table of a live sequence, or the last one of an ended one; None if it is not known."""
        found = self._tables.get(request_id) or self._ended.get(request_id)
        return None if found is None else list(found)

    def hit(self, request_id: str) -> PrefixHit | None:
        """What the sequence found in the prefix cache when it was last admitted; None if nothing."""
        return self._hits.get(request_id)

    def now(self) -> BlockView:
        """All blocks as they are."""
        tables = {request_id: list(block_ids) for request_id, block_ids in self._tables.items()}
        return BlockView(self.step, list(self._num_refs), list(self._hashes), tables)

    def seen(self) -> BlockView:
        """All blocks as they are, not copied: to be looked at before the next fact, and not to be changed."""
        return BlockView(self.step, self._num_refs, self._hashes, self._tables)

    def changed_step(self, block_id: int) -> int | None:
        """The last step known to have changed a block; None if that was before a loss, or never."""
        return self._changed[block_id] or None

    def copied(self) -> BlockCopy:
        """All blocks as they are, with the changes that led here."""
        return BlockCopy(self.now(), self._undo.all(), self._undo.num_added)

    def changes_since(self, num_changes: int) -> list[BlockChange] | None:
        """What changed since there had been so many changes, oldest first; None if that is not all known."""
        return self._undo.since(num_changes)

    def newest_changes(self) -> Iterator[BlockChange]:
        """What is kept of the last changes, newest first."""
        return self._undo.after(-1)

    def held_by(self, request_id: str) -> Sequence[int]:
        """The block table of a live sequence as it is kept here, not to be changed; empty if it has none."""
        return self._tables.get(request_id, ())

    def look(self, block_ids: Iterable[int]) -> tuple[list[int], list[bytes]]:
        """References and hashes of these blocks."""
        known = list(block_ids)
        return [self._num_refs[each] for each in known], [self._hashes[each] for each in known]

    def at(self, step: int) -> BlockView | None:
        """All blocks as they were after a past step; None when that is longer ago than is kept."""
        if step < self._undo.first_step:
            return None
        view = self.now()
        for change in self._undo.after(step):
            view.take_back(change)
        view.step = min(step, self.step)
        return view

    def table_at(self, request_id: str, step: int) -> list[int] | None:
        """A sequence's block table as it was after a past step; None if it had none or that is not known."""
        if step < self._undo.first_step:
            return None
        view = BlockView(step, [], [], {})
        if request_id in self._tables:
            view.tables[request_id] = list(self._tables[request_id])
        for change in self._undo.after(step):
            if not isinstance(change, BlockBefore) and change.request_id == request_id:
                view.take_back(change)
        return view.tables.get(request_id)

    def changed(self, record: BlocksChanged) -> None:
        """Blocks were handed out and given back."""
        self.step = max(self.step, record.step)
        rows = zip(record.request_ids, record.allocated, record.freed, record.num_hit_blocks, strict=False)
        freed_rows = []
        for request_id, allocated, freed, num_hits in rows:
            if allocated:
                self._allocate(record.step, request_id, allocated, num_hits)
            if freed:
                freed_rows.append((request_id, freed))
        for request_id, freed in freed_rows:
            self._free(record.step, request_id, freed)

    def cached(self, record: BlocksCached) -> None:
        """Blocks entered or left the prefix cache."""
        self.step = max(self.step, record.step)
        for block_id, block_hash in zip(record.block_ids, record.hashes, strict=False):
            self._grow(block_id + 1)
            self._set(record.step, block_id, self._num_refs[block_id], NO_HASH if record.evicted else block_hash)

    def blocks_keyframe(self, keyframe: BlocksKeyframe) -> int:
        """Take a slice of the pool as it is; how many of its blocks were otherwise in a map that was exact."""
        first, num_wrong = keyframe.first_block, 0
        last = first + len(keyframe.reference_counts)
        self.step = max(self.step, keyframe.step)
        self._grow(last)
        # As a rule it tells what is known, which is seen at once; to look at each block would cost as much as all
        # else that is done for a step.
        told = (keyframe.reference_counts, keyframe.hashes)
        if (self._num_refs[first:last], self._hashes[first:last]) != told:
            for block_id, (num_refs, block_hash) in enumerate(zip(*told, strict=False), first):
                num_wrong += self._set(keyframe.step, block_id, num_refs, block_hash)
        was_exact = self.is_exact
        if self._catching is not None:
            self._catching.blocks.difference_update(range(first, last))
            self._finish_catching()
        return num_wrong if was_exact else 0

    def request_keyframe(self, keyframe: RequestKeyframe) -> bool:
        """Take a sequence's table as it is; whether it was otherwise in a map that was exact."""
        request_id, block_ids = keyframe.request_id, list(keyframe.block_ids)
        is_wrong = self._tables.get(request_id, []) != block_ids
        if is_wrong and block_ids:
            self._put_table(keyframe.step, request_id, block_ids)
        elif is_wrong:
            self._drop_table(keyframe.step, request_id)
        was_exact = self.is_exact
        self._told(request_id)
        return is_wrong and was_exact

    def lost(self) -> None:
        """Records are missing from here on: nothing is certain until keyframes have told everything."""
        self._catching = Catching(set(range(self.num_blocks)))
        self._changed = array("q", bytes(8 * self.num_blocks))
        self._undo.begin(self.step + 1)

    def gone(self, last_step: int) -> None:
        """The engine is dead and nobody holds anything; how it was is kept as what its last step left."""
        self.step = max(self.step, last_step) + 1
        for request_id in list(self._tables):
            self._drop_table(self.step, request_id)
        for block_id in range(self.num_blocks):
            self._set(self.step, block_id, 0, NO_HASH)

    def keep_only(self, request_ids: set[str]) -> None:
        """These sequences are all that live: whoever else has a table was released unheard."""
        for request_id in [request_id for request_id in self._tables if request_id not in request_ids]:
            self._drop_table(self.step, request_id)
        if self._catching is not None:
            self._catching.told &= request_ids
            self._catching.missing = request_ids - self._catching.told
            self._finish_catching()

    def _allocate(self, step: int, request_id: str, allocated: list[int], num_hits: int) -> None:
        if num_hits:
            hits = allocated[:num_hits]
            hashes = [self._hashes[block_id] if block_id < self.num_blocks else NO_HASH for block_id in hits]
            _remember(self._hits, request_id, PrefixHit(step, hits, hashes))
        table = self._tables.get(request_id)
        if table is None:
            self._undo.add(TableBefore(step, request_id, None))
            self._tables[request_id] = list(allocated)
        else:
            self._undo.add(TableGrown(step, request_id, len(allocated)))
            table += allocated
        for block_id in allocated:
            self._refer(step, block_id, 1)

    def _free(self, step: int, request_id: str, freed: list[int]) -> None:
        table = self._tables.get(request_id)
        if table is not None and len(table) > len(freed) and table[: len(freed)] == freed:
            # It gave its blocks back and got others within this step.
            self._put_table(step, request_id, table[len(freed) :])
        else:
            self._drop_table(step, request_id)
        for block_id in freed:
            self._refer(step, block_id, -1)

    def _put_table(self, step: int, request_id: str, block_ids: list[int]) -> None:
        self._grow(max(block_ids) + 1)
        before = self._tables.get(request_id)
        self._undo.add(TableBefore(step, request_id, None if before is None else tuple(before)))
        self._tables[request_id] = block_ids

    def _drop_table(self, step: int, request_id: str) -> None:
        table = self._tables.pop(request_id, None)
        if table is not None:
            self._undo.add(TableBefore(step, request_id, tuple(table)))
            _remember(self._ended, request_id, table)

    def begin(self, request_id: str) -> None:
        """The sequence was taken just now and has no blocks: whatever it gets will be heard of."""
        self._told(request_id)

    def forget(self, request_id: str) -> None:
        """The sequence was released: no keyframe will tell its table any more."""
        self._told(request_id)

    def _told(self, request_id: str) -> None:
        catching = self._catching
        if catching is None:
            return
        catching.told.add(request_id)
        if catching.missing is not None:
            catching.missing.discard(request_id)
            self._finish_catching()

    def _refer(self, step: int, block_id: int, num: int) -> None:
        self._grow(block_id + 1)
        # After a loss a count may be wrong; its keyframe will say.
        self._set(step, block_id, max(0, self._num_refs[block_id] + num), self._hashes[block_id])

    def _set(self, step: int, block_id: int, num_refs: int, block_hash: bytes) -> bool:
        """Change a block; whether that made a difference."""
        old_refs, old_hash = self._num_refs[block_id], self._hashes[block_id]
        if old_refs == num_refs and old_hash == block_hash:
            return False
        self._undo.add(BlockBefore(step, block_id, old_refs, old_hash))
        self._num_active += (num_refs > 0) - (old_refs > 0)
        self._num_cached += (num_refs == 0 and bool(block_hash)) - (old_refs == 0 and bool(old_hash))
        self._num_refs[block_id], self._hashes[block_id] = num_refs, block_hash
        self._changed[block_id] = step
        return True

    def _grow(self, num_blocks: int) -> None:
        num_more = num_blocks - len(self._num_refs)
        if num_more > 0:
            self._num_refs += [0] * num_more
            self._hashes += [NO_HASH] * num_more
            self._changed.frombytes(bytes(8 * num_more))

    def _finish_catching(self) -> None:
        catching = self._catching
        if catching is not None and not catching.blocks and catching.missing is not None and not catching.missing:
            self._catching = None
            self._undo.begin(self.step)


def _remember(kept: "OrderedDict[str, T]", request_id: str, value: T) -> None:
    kept[request_id] = value
    kept.move_to_end(request_id)
    if len(kept) > MAX_ENDED_TABLES:
        kept.popitem(last=False)
