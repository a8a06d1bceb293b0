"""The Observer derives one state from the rings, passes over what it cannot apply, and counts what it did."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.view import Source


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


@pytest.fixture
def observer(run: ScriptedRun, tmp_path: Path) -> Iterator[Observer]:
    observer = Observer("run", tmp_path)
    observer.tail = RingTail(tmp_path)
    yield observer
    observer.close()


def drained(observer: Observer) -> Observer:
    while not observer.drain_slice():
        pass
    return observer


def test_what_was_recorded_is_known_after_a_drain(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a")
    run.submit("b")
    state = drained(observer).state
    assert [ledger.request_id for ledger in state.ended] == ["a-0-0"]
    assert list(state.sequences) == ["b-0-0"]
    assert state.invariants.num_broken == 0, state.invariants.breaches()
    run.step("b")
    run.finish("b")
    assert len(drained(observer).state.ended) == 2
    assert state.invariants.num_broken == 0, state.invariants.breaches()


def test_a_closed_ledger_adds_up(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a", num_output=2)
    ledger = drained(observer).state.ended.get("a-0-0")
    assert ledger is not None
    ms = {stage: length / 1e6 for stage, length in ledger.stage_ns().items() if length}
    assert ms == {
        "receive": 1, "render": 1, "tokenize": 1, "submit": 2, "queue": 1, "prefill": 8, "decode": 10,
        "return": 2, "detokenize": 1, "deliver": 1,
    }  # fmt: skip
    assert sum(ms.values()) == ledger.latency_ns / 1e6


def test_a_fact_that_cannot_be_applied_is_passed_over(
    run: ScriptedRun, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = observer.state.apply

    def fragile(source: Source, fact: Any) -> None:
        if type(fact).__name__ == "StepPlanned":
            raise ZeroDivisionError
        apply(source, fact)

    monkeypatch.setattr(observer.state, "apply", fragile)
    run.serve("a", num_output=3)
    assert drained(observer).cost.num_failed_facts == 3
    assert [ended.http_id for ended in observer.state.http] == ["a"]


def test_slices_are_counted_and_leave_room_between_them(run: ScriptedRun, observer: Observer) -> None:
    for number in range(400):
        run.serve(f"r{number}", num_output=1)
    num_slices = 1
    while not observer.drain_slice():
        num_slices += 1
    cost = observer.cost
    assert cost.num_slices == num_slices
    assert 0 < cost.max_slice_seconds <= cost.drain_seconds
    assert len(observer.state.ended) == 400
