"""RecordingView: a view that keeps what it was told."""

from collections.abc import Sequence

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, Source


class RecordingView(BaseView):
    """Everything that a view is told beside the records, in order."""

    def __init__(self) -> None:
        self.gaps: dict[str, list[int | None]] = {}
        self.closed: list[SequenceLedger] = []
        self.steps: list[StepFacts] = []
        self.losses: list[tuple[str, int]] = []

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        self.gaps.setdefault(ledger.request_id, []).append(None)

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        for ledger in ledgers:
            self.gaps.setdefault(ledger.request_id, []).append(gap_ns)

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        self.closed.append(ledger)

    def step_closed(self, step: StepFacts) -> None:
        self.steps.append(step)

    def lost(self, source: Source, num: int) -> None:
        self.losses.append((source.role, num))
