"""EndedSequences: the ledgers of the sequences that ended last."""

from collections import OrderedDict
from collections.abc import Iterator

from vllm_obs.telemetry.ledger import SequenceLedger

MAX_ENDED_SEQUENCES = 10_000
MAX_ENDED_AGE_NS = 600 * 10**9


class EndedSequences:
    """The last closed ledgers by id, oldest first: at most 10,000, none older than ten minutes."""

    def __init__(self, max_sequences: int = MAX_ENDED_SEQUENCES) -> None:
        self._max_sequences = max_sequences
        self._ledgers: OrderedDict[str, SequenceLedger] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ledgers)

    def __iter__(self) -> Iterator[SequenceLedger]:
        return iter(self._ledgers.values())

    def __reversed__(self) -> Iterator[SequenceLedger]:
        """Newest first."""
        return reversed(self._ledgers.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ledgers

    def get(self, request_id: str) -> SequenceLedger | None:
        """The ledger of that sequence, if it is kept."""
        return self._ledgers.get(request_id)

    def add(self, ledger: SequenceLedger) -> None:
        """Keep a ledger that closed now."""
        self._ledgers[ledger.request_id] = ledger
        self.trim(ledger.ended_at)

    def trim(self, now: int) -> None:
        """Let go of what is too old or too much."""
        while self._ledgers:
            oldest = next(iter(self._ledgers.values()))
            if len(self._ledgers) <= self._max_sequences and oldest.ended_at >= now - MAX_ENDED_AGE_NS:
                return
            self._ledgers.popitem(last=False)
