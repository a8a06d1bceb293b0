"""BlockTime: how long each sequence held how many KV blocks, those that several hold split among them."""

from collections.abc import Iterable
from typing import Any


class BlockTime:
    """Block-nanoseconds of one engine process, up to `at` (monotonic ns).

    Each active block counts what one of its holders has got of it so far, so that a change costs a look at the
    blocks that changed, however many sequences share them. What a sequence has got of the blocks it holds is the
    difference between their counts now and when it got them. All sequences' sum to `active_ns`, the integral of
    the number of active blocks.
    """

    def __init__(self) -> None:
        self.at = 0
        self.active_ns = 0
        self._num_refs: dict[int, int] = {}
        self._got: dict[int, float] = {}
        self._since: dict[int, int] = {}
        self._tables: dict[str, list[int]] = {}
        self._before: dict[str, float] = {}

    @property
    def num_active(self) -> int:
        """Blocks that somebody holds."""
        return len(self._num_refs)

    @property
    def holders(self) -> list[str]:
        """The sequences that hold blocks."""
        return list(self._tables)

    def is_held_by(self, request_id: str) -> bool:
        """Whether the sequence holds blocks."""
        return request_id in self._tables

    def advance(self, at: int) -> None:
        """Time went by until then."""
        if at > self.at:
            if self.at:
                self.active_ns += len(self._num_refs) * (at - self.at)
            self.at = at

    def hold(self, request_id: str, block_ids: Iterable[int]) -> None:
        """A sequence has these blocks as well from now on."""
        table = self._tables.setdefault(request_id, [])
        before = self._before.get(request_id, 0.0)
        for block_id in block_ids:
            table.append(block_id)
            before += self._refer(block_id)
        self._before[request_id] = before

    def free(self, request_id: str, freed: list[int]) -> float:
        """It gave these back, all it had or had before this step; the block-nanoseconds it had got of its own."""
        table = self._tables.get(request_id)
        if table is None:
            return 0.0
        kept = table[len(freed) :] if table[: len(freed)] == freed else []
        return self.put_table(request_id, kept)

    def put_table(self, request_id: str, block_ids: list[int]) -> float:
        """Exactly these are what it holds from now on; the block-nanoseconds it had got of those it held."""
        got_ns = self.held_ns(request_id)
        table = self._tables.pop(request_id, [])
        self._before.pop(request_id, None)
        if block_ids:
            self.hold(request_id, block_ids)
        for block_id in table:
            self._let_go(block_id)
        return got_ns

    def has_table(self, request_id: str, block_ids: list[int]) -> bool:
        """Whether that is what it holds."""
        return self._tables.get(request_id, []) == block_ids

    def held_ns(self, request_id: str) -> float:
        """The block-nanoseconds that it has got of the blocks it holds."""
        table = self._tables.get(request_id)
        if table is None:
            return 0.0
        at, got, since, num_refs = self.at, self._got, self._since, self._num_refs
        total = sum(got[block_id] + (at - since[block_id]) / num_refs[block_id] for block_id in table)
        return max(0.0, total - self._before[request_id])

    def state(self) -> Any:
        """For a checkpoint: who holds what, and what they have got of it."""
        tables = [[name, table, self.held_ns(name)] for name, table in self._tables.items()]
        return [self.at, self.active_ns, tables]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint. TypeError or ValueError if it is none."""
        self.at, self.active_ns, tables = state
        for name, table, got_ns in tables:
            self.hold(name, table)
            self._before[name] -= got_ns

    def _refer(self, block_id: int) -> float:
        """One more holder; what each holder has got until now."""
        num_refs = self._num_refs.get(block_id, 0)
        if num_refs:
            self._got[block_id] += (self.at - self._since[block_id]) / num_refs
        else:
            self._got[block_id] = 0.0
        self._since[block_id], self._num_refs[block_id] = self.at, num_refs + 1
        return self._got[block_id]

    def _let_go(self, block_id: int) -> None:
        num_refs = self._num_refs[block_id]
        if num_refs == 1:
            del self._num_refs[block_id], self._got[block_id], self._since[block_id]
            return
        self._got[block_id] += (self.at - self._since[block_id]) / num_refs
        self._since[block_id], self._num_refs[block_id] = self.at, num_refs - 1
