"""Views are told what they take notice of, and one that fails holds up nobody."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import FrameDropped, LoopSampled, Record
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, Source
from vllm_obs.telemetry.view_fan import ViewFan

SOURCE = Source("APIServer_0", 1, 1, "")
DROPPED = FrameDropped("socket", "decode", 7)
LEDGER, STEP = cast(SequenceLedger, "ledger"), cast(StepFacts, "step")


class Listener:
    """Takes notice of everything, without deriving from anything."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def record(self, source: Source, record: Record) -> None:
        self.told.append(("record", source, record))

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        self.told.append(("first_token", ledger, sampled_at))

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        self.told.append(("tokens", ledgers, gap_ns, sampled_at))

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        self.told.append(("sequence_closed", ledger))

    def step_closed(self, step: StepFacts) -> None:
        self.told.append(("step_closed", step))

    def lost(self, source: Source, num: int) -> None:
        self.told.append(("lost", source, num))


class StepListener(BaseView):
    """Takes notice of steps only."""

    def __init__(self) -> None:
        self.steps: list[StepFacts] = []

    def step_closed(self, step: StepFacts) -> None:
        self.steps.append(step)


class FailingView(BaseView):
    """Cannot bear anything."""

    def record(self, source: Source, record: Record) -> None:
        raise KeyError("record")

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        raise KeyError("first_token")

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        raise KeyError("tokens")

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        raise KeyError("sequence")

    def step_closed(self, step: StepFacts) -> None:
        raise KeyError("step")

    def lost(self, source: Source, num: int) -> None:
        raise KeyError("lost")


def tell_all(fan: ViewFan) -> None:
    fan.record(SOURCE, DROPPED)
    fan.first_token(LEDGER, 5)
    fan.tokens([LEDGER], 3, 8)
    fan.sequence_closed(LEDGER)
    fan.step_closed(STEP)
    fan.lost(SOURCE, 4)


ALL = [
    ("record", SOURCE, DROPPED),
    ("first_token", LEDGER, 5),
    ("tokens", [LEDGER], 3, 8),
    ("sequence_closed", LEDGER),
    ("step_closed", STEP),
    ("lost", SOURCE, 4),
]


def test_every_call_is_passed_on_to_every_view() -> None:
    fan, first, second = ViewFan(), Listener(), Listener()
    fan.add(first)
    fan.add(second)
    tell_all(fan)
    assert first.told == second.told == ALL


def test_a_view_is_called_for_what_it_overrides_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(BaseView, "tokens", lambda *arguments: calls.append("tokens"))
    monkeypatch.setattr(BaseView, "record", lambda *arguments: calls.append("record"))
    fan, listener = ViewFan(), StepListener()
    fan.add(listener)
    tell_all(fan)
    assert (listener.steps, calls) == ([STEP], [])


def test_a_view_that_fails_holds_up_nobody_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    fan, listener = ViewFan(), Listener()
    fan.add(FailingView())
    fan.add(listener)
    tell_all(fan)
    assert listener.told == ALL
    assert fan.num_errors == 6
    assert [record.message for record in caplog.records] == [
        "a view failed in FailingView.record; later failures are counted only"
    ]


class DropListener(Listener):
    """Takes notice of one kind of records, as it says."""

    record_kinds = (FrameDropped,)


def test_records_of_other_kinds_than_a_view_names_are_kept_from_it() -> None:
    fan, some, later = ViewFan(), DropListener(), Listener()
    other = LoopSampled(0, 1, 0.0, 0, 0, 0)
    fan.add(some)
    fan.record(SOURCE, DROPPED)
    fan.add(later)
    fan.record(SOURCE, other)
    fan.record(SOURCE, DROPPED)
    assert some.told == [("record", SOURCE, DROPPED)] * 2
    assert later.told == [("record", SOURCE, other), ("record", SOURCE, DROPPED)]
