"""ViewFan: tells every view that takes notice, and lets none of them hold up the others."""

import logging
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, Source, View

logger = logging.getLogger(__name__)


_TellRecord = Callable[[Source, Record], None]


class _RecordListener(NamedTuple):
    tell: _TellRecord
    kinds: Container[type[Record]] | None

    def heeds(self, kind: type[Record]) -> bool:
        return self.kinds is None or kind in self.kinds


class ViewFan:
    """A view that passes every call on to those who override it, since a call for nothing costs as much.

    What a view raises is counted in `num_errors`; the first is logged.
    """

    def __init__(self) -> None:
        self.num_errors = 0
        self._record: list[_RecordListener] = []
        self._by_kind: dict[type[Record], list[_TellRecord]] = {}
        """Who is told of records of each kind that has come."""
        self._first_token: list[Callable[[SequenceLedger, int], None]] = []
        self._tokens: list[Callable[[Sequence[SequenceLedger], int, int], None]] = []
        self._sequence_closed: list[Callable[[SequenceLedger], None]] = []
        self._step_closed: list[Callable[[StepFacts], None]] = []
        self._lost: list[Callable[[Source, int], None]] = []

    def add(self, view: View) -> None:
        """Tell this view as well, from now on."""
        kinds: Container[type[Record]] | None = getattr(view, "record_kinds", None)
        self._record += [_RecordListener(tell, kinds) for tell in _heeded(view.record, BaseView.record)]
        self._by_kind.clear()
        self._first_token += _heeded(view.first_token, BaseView.first_token)
        self._tokens += _heeded(view.tokens, BaseView.tokens)
        self._sequence_closed += _heeded(view.sequence_closed, BaseView.sequence_closed)
        self._step_closed += _heeded(view.step_closed, BaseView.step_closed)
        self._lost += _heeded(view.lost, BaseView.lost)

    def record(self, source: Source, record: Record) -> None:
        """Any record."""
        kind = type(record)
        tells = self._by_kind.get(kind)
        if tells is None:
            tells = self._by_kind[kind] = [each.tell for each in self._record if each.heeds(kind)]
        for tell in tells:
            try:
                tell(source, record)
            except Exception:
                self._failed(tell)

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """A sequence has its first token."""
        for tell in self._first_token:
            try:
                tell(ledger, sampled_at)
            except Exception:
                self._failed(tell)

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        """Another token for each of these sequences."""
        for tell in self._tokens:
            try:
                tell(ledgers, gap_ns, sampled_at)
            except Exception:
                self._failed(tell)

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """A sequence is over."""
        for tell in self._sequence_closed:
            try:
                tell(ledger)
            except Exception:
                self._failed(tell)

    def step_closed(self, step: StepFacts) -> None:
        """A step is over."""
        for tell in self._step_closed:
            try:
                tell(step)
            except Exception:
                self._failed(tell)

    def lost(self, source: Source, num: int) -> None:
        """Records were lost."""
        for tell in self._lost:
            try:
                tell(source, num)
            except Exception:
                self._failed(tell)

    def _failed(self, call: Callable[..., None]) -> None:
        self.num_errors += 1
        if self.num_errors == 1:
            name = getattr(call, "__qualname__", repr(call))
            logger.exception("a view failed in %s; later failures are counted only", name)


def _heeded(call: Callable[..., None], unheeded: Callable[..., Any]) -> list[Callable[..., None]]:
    """The call, unless it is the one that takes no notice."""
    return [] if getattr(call, "__func__", None) is unheeded else [call]
