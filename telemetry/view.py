"""The ports of the Observer's state: where records come from, what else can happen to them, and who is told."""

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.step_history import StepFacts


class Source(NamedTuple):
    """The process that wrote a record. `generation` is its ring's, different for every process that ever ran.

    `engine` is the label of the engine it belongs to ("0"), empty for an API server and the Observer. `host` names
    the host it runs on where that is another than the Observer's: there its pid says nothing to the kernel here.
    """

    role: str
    pid: int
    generation: int
    engine: str
    host: str = ""


class RecordsLost(NamedTuple):
    """In a source's stream: so many records in this place were overwritten unread, torn, or never written.

    None (0) where a recording begins in the middle of it: what was before is missing and was not lost.
    """

    num: int


class SourceGone(NamedTuple):
    """The last of a source's stream: its process has ended and everything it wrote has been read."""


Fact = Record | RecordsLost | SourceGone
"""What a stream of one source consists of."""


class View(Protocol):
    """Something derived from the facts. All calls come from one thread, in the order the facts are applied in."""

    def record(self, source: Source, record: Record) -> None:
        """Any record, before anything is derived from it."""

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """A sequence has its first token."""

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        """Another token for each of these sequences of one engine, all so long after the one before."""

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """A sequence is over and its ledger final. `ledger.ended` is None if its API server died before."""

    def step_closed(self, step: StepFacts) -> None:
        """A step is over and every rank has recorded its part (or two seconds went by, or the engine is gone).

        A step without rows closes when it is planned; it has neither answer nor failure. `outputs` may still grow.
        """

    def lost(self, source: Source, num: int) -> None:
        """So many records of a source were lost here."""


class BaseView:
    """A view that takes no notice of anything: derive from it and override what matters.

    `record_kinds` are the kinds of records that `record` takes notice of; of others it is not told. None for all.
    """

    record_kinds: Container[type[Record]] | None = None

    def record(self, source: Source, record: Record) -> None:
        """Take no notice."""

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """Take no notice."""

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        """Take no notice."""

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """Take no notice."""

    def step_closed(self, step: StepFacts) -> None:
        """Take no notice."""

    def lost(self, source: Source, num: int) -> None:
        """Take no notice."""
