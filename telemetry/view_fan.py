"""ViewFan: tells every view, and lets none of them hold up the others."""

import logging
from collections.abc import Callable

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import Source, View

logger = logging.getLogger(__name__)


class ViewFan:
    """A view that passes every call on. What a view raises is counted in `num_errors`; the first is logged."""

    def __init__(self) -> None:
        self.num_errors = 0
        self._views: list[View] = []

    def add(self, view: View) -> None:
        """Tell this view as well, from now on."""
        self._views.append(view)

    def record(self, source: Source, record: Record) -> None:
        """Any record."""
        for view in self._views:
            try:
                view.record(source, record)
            except Exception:
                self._failed(view.record)

    def tokens(self, ledger: SequenceLedger, gap_ns: int | None, sampled_at: int) -> None:
        """One new token of a sequence."""
        for view in self._views:
            try:
                view.tokens(ledger, gap_ns, sampled_at)
            except Exception:
                self._failed(view.tokens)

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """A sequence is over."""
        for view in self._views:
            try:
                view.sequence_closed(ledger)
            except Exception:
                self._failed(view.sequence_closed)

    def step_closed(self, step: StepFacts) -> None:
        """A step is over."""
        for view in self._views:
            try:
                view.step_closed(step)
            except Exception:
                self._failed(view.step_closed)

    def lost(self, source: Source, num: int) -> None:
        """Records were lost."""
        for view in self._views:
            try:
                view.lost(source, num)
            except Exception:
                self._failed(view.lost)

    def _failed(self, call: Callable[..., None]) -> None:
        self.num_errors += 1
        if self.num_errors == 1:
            logger.exception("a view failed in %s; later failures are counted only", call.__qualname__)
