"""BlockView: all KV blocks of an engine at one time, and who holds them."""

from dataclasses import dataclass
from typing import NamedTuple

from vllm_obs.telemetry.block_undo import BlockBefore, BlockChange, TableGrown

NO_HASH = b""


class BlockLevels(NamedTuple):
    """How many blocks are referenced, unreferenced but found by hash, and neither."""

    num_active: int
    num_cached: int
    num_free: int


class PrefixHit(NamedTuple):
    """The blocks that a sequence was given from the prefix cache in `step`, with their hashes (8 bytes each)."""

    step: int
    block_ids: list[int]
    hashes: list[bytes]


@dataclass(slots=True)
class BlockView:
    """All blocks as they were after `step`: references, hashes (empty: none) and the tables that name them."""

    step: int
    num_refs: list[int]
    hashes: list[bytes]
    tables: dict[str, list[int]]

    def state_of(self, block_id: int) -> str:
        """active, cached or free."""
        return "active" if self.num_refs[block_id] else "cached" if self.hashes[block_id] else "free"

    def owners(self) -> dict[int, list[str]]:
        """The sequences that hold each block that anyone holds."""
        found: dict[int, list[str]] = {}
        for request_id, block_ids in self.tables.items():
            for block_id in block_ids:
                found.setdefault(block_id, []).append(request_id)
        return found

    def take_back(self, change: BlockChange) -> None:
        """Undo the newest change that is in this view."""
        if isinstance(change, BlockBefore):
            self.num_refs[change.block_id], self.hashes[change.block_id] = change.num_refs, change.block_hash
        elif isinstance(change, TableGrown):
            table = self.tables[change.request_id]
            del table[len(table) - change.num_blocks :]
        elif change.block_ids is None:
            self.tables.pop(change.request_id, None)
        else:
            self.tables[change.request_id] = list(change.block_ids)


class BlockCopy(NamedTuple):
    """All blocks at one time, the last changes before it (oldest first), and how many changes there ever were."""

    view: BlockView
    changes: list[BlockChange]
    num_changes: int
