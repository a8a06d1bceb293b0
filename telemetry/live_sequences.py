"""LiveSequences: the sequences one engine holds now, with what its counters need to know of each."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_SEQUENCES = 65_536
"""The engine's own limit; the oldest would go, which happens only after records were lost."""


@dataclass(slots=True)
class LiveSequence:
    """One sequence between its taking and its release.

    `num_counted_tokens` of its prompt are in the counters; `num_computed_tokens` are in its `num_blocks` blocks
    as planned, `num_high_tokens` the most that were ever answered. One that `skips_cache` is not looked up there.
    """

    request_id: str
    num_prompt_tokens: int
    num_counted_tokens: int = 0
    num_computed_tokens: int = 0
    num_high_tokens: int = 0
    num_blocks: int = 0
    skips_cache: bool = False

    def lose_blocks(self) -> None:
        """It was preempted: everything will be computed again."""
        self.num_computed_tokens = self.num_blocks = 0


class LiveSequences:
    """By request id, at most 65,536."""

    def __init__(self) -> None:
        self._by_id: dict[str, LiveSequence] = {}
        self._row_ids: list[str] | None = None
        self._rows: list[LiveSequence | None] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._by_id.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def get(self, request_id: str) -> LiveSequence | None:
        """The sequence, None for one that left or was never seen."""
        return self._by_id.get(request_id)

    def rows(self, request_ids: list[str]) -> list[LiveSequence | None]:
        """`get` for each of these; looked up once for a list that comes again while nobody comes or goes."""
        if request_ids is not self._row_ids:
            self._rows = list(map(self._by_id.get, request_ids))
            self._row_ids = request_ids
        return self._rows

    def some(self, request_ids: Iterable[str]) -> Iterator[LiveSequence]:
        """Those of these that are live."""
        return filter(None, map(self._by_id.get, request_ids))

    def add(self, sequence: LiveSequence) -> None:
        """It was taken; where there is no room the oldest is forgotten."""
        if len(self._by_id) >= MAX_SEQUENCES:
            del self._by_id[next(iter(self._by_id))]
        self._by_id[sequence.request_id] = sequence
        self._row_ids = None

    def remove(self, request_id: str) -> None:
        """It left."""
        self._by_id.pop(request_id, None)
        self._row_ids = None

    def keep_only(self, request_ids: Container[str]) -> None:
        """Whoever is not among these left, and nobody told."""
        gone = [request_id for request_id in self._by_id if request_id not in request_ids]
        for request_id in gone:
            del self._by_id[request_id]
        self._row_ids = None

    def num_filled_slots(self, num_active_blocks: int, block_size: int) -> int:
        """Token slots of the active blocks that are in use. Blocks that sequences share are always full."""
        unfilled = sum(
            max(0, sequence.num_blocks * block_size - sequence.num_computed_tokens) for sequence in self
        )
        return max(0, num_active_blocks * block_size - unfilled)

    def state(self) -> Any:
        """All of them in plain values."""
        # Not `astuple`, which looks for dataclasses within each value, each second.
        return [[getattr(sequence, name) for name in LiveSequence.__slots__] for sequence in self]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError if it is none."""
        self._by_id = {row[0]: LiveSequence(*row) for row in state}
        self._row_ids = None
