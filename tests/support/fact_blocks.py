"""FactBlocks: a small block pool that records what happens to it, as the engine's own does."""

from vllm_obs.telemetry.records import BlocksCached, BlocksChanged, BlocksKeyframe, Record


class FactBlocks:
    """`num_blocks` blocks of `block_size` tokens; full blocks of answered steps can be found again by hash."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.num_refs = [0] * num_blocks
        self.hashes = [b""] * num_blocks
        self.tables: dict[str, list[int]] = {}
        self._rows: list[tuple[str, list[int], list[int], int]] = []
        self._evicted: list[tuple[int, bytes]] = []
        self._cached: list[tuple[int, bytes]] = []
        self._num_hashes = 0

    @property
    def levels(self) -> tuple[int, int, int]:
        """How many blocks are active, cached and free."""
        num_active = sum(refs > 0 for refs in self.num_refs)
        num_cached = sum(refs == 0 and held != b"" for refs, held in zip(self.num_refs, self.hashes, strict=True))
        return num_active, num_cached, len(self.num_refs) - num_active - num_cached

    def grow(self, request_id: str, num_tokens: int, num_cached_tokens: int = 0) -> int:
        """Room for so many tokens in all; how many blocks that took. The first come from the cache if asked."""
        table = self.tables.setdefault(request_id, [])
        hits = self._hits(num_cached_tokens // self.block_size) if not table else []
        num_needed = -(-num_tokens // self.block_size) - len(table) - len(hits)
        fresh = self._fresh(max(0, num_needed))
        if hits or fresh:
            table += hits + fresh
            self._rows.append((request_id, hits + fresh, [], len(hits)))
        return len(hits) + len(fresh)

    def fill(self, request_id: str, num_tokens: int) -> None:
        """The first tokens of the sequence are computed: its full blocks can be found."""
        for block_id in self.tables.get(request_id, [])[: num_tokens // self.block_size]:
            if not self.hashes[block_id]:
                self._num_hashes += 1
                self.hashes[block_id] = self._num_hashes.to_bytes(8, "big")
                self._cached.append((block_id, self.hashes[block_id]))

    def free(self, request_id: str) -> None:
        """Take a sequence's blocks back."""
        table = self.tables.pop(request_id, [])
        for block_id in table:
            self.num_refs[block_id] -= 1
        if table:
            self._rows.append((request_id, [], table, 0))

    def take_records(self, step: int) -> list[Record]:
        """What happened since the last call."""
        records: list[Record] = []
        if self._rows:
            rows = sorted(self._rows, key=lambda row: bool(row[2]))
            records.append(BlocksChanged(step, *(list(column) for column in zip(*rows, strict=True))))
        for changed, evicted in ((self._evicted, True), (self._cached, False)):
            if changed:
                records.append(
                    BlocksCached(step, [each[0] for each in changed], [each[1] for each in changed], evicted)
                )
        self._rows, self._evicted, self._cached = [], [], []
        return records

    def keyframe(self, step: int, first: int, num_blocks: int) -> BlocksKeyframe:
        """A slice of the pool as it is."""
        end = first + num_blocks
        return BlocksKeyframe(step, first, self.num_refs[first:end], self.hashes[first:end])

    def _hits(self, num_blocks: int) -> list[int]:
        found = [block_id for block_id, held in enumerate(self.hashes) if held][:num_blocks]
        assert len(found) == num_blocks, f"{num_blocks} hits asked, {len(found)} blocks have content"
        for block_id in found:
            self.num_refs[block_id] += 1
        return found

    def _fresh(self, num_blocks: int) -> list[int]:
        idle = [block_id for block_id, refs in enumerate(self.num_refs) if not refs]
        taken = sorted(idle, key=lambda block_id: bool(self.hashes[block_id]))[:num_blocks]
        assert len(taken) == num_blocks, f"{num_blocks} blocks asked, {len(idle)} idle"
        for block_id in taken:
            self.num_refs[block_id] = 1
            if self.hashes[block_id]:
                self._evicted.append((block_id, self.hashes[block_id]))
                self.hashes[block_id] = b""
        return taken
