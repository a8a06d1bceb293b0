"""The step that an engine is in is the oldest one planned and not over."""

from typing import Any

import pytest
from fact_stream import ENGINE, FactStream

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import StepPlanned
from vllm_obs.telemetry.under_way import step_under_way, under_way_view
from vllm_obs.telemetry.view import SourceGone


class Run:
    """An engine that is told fact by fact."""

    def __init__(self) -> None:
        self.state = Observer("run").state
        self.stream = FactStream()
        self.apply(self.stream.describe())
        self.apply(self.stream.submit("a"))

    def apply(self, facts: Any) -> None:
        for source, fact in facts:
            self.state.apply(source, fact)

    @property
    def engine(self) -> EngineState:
        return self.state.engines.get("0") or self.state.past_engines[-1]


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_step_is_under_way_until_it_is_answered(run: Run) -> None:
    assert under_way_view(run.engine) is None
    facts = run.stream.step({"a": 10})
    planned = next(fact for _, fact in facts if isinstance(fact, StepPlanned))
    plan_at = next(at for at, (_, fact) in enumerate(facts) if isinstance(fact, StepPlanned))
    run.apply(facts[: plan_at + 1])
    assert under_way_view(run.engine) == {
        "step": 1,
        "begun_at": planned.schedule_begun_at,
        "num_requests": 1,
        "num_running": planned.num_running,
        "num_waiting": planned.num_waiting,
        "num_active": planned.num_active_blocks,
        "num_cached": planned.num_cached_blocks,
        "num_free": planned.num_free_blocks,
    }
    run.apply(facts[plan_at + 1 :])
    assert under_way_view(run.engine) is None


def test_a_step_that_runs_nobody_or_fails_is_not_under_way(run: Run) -> None:
    run.apply(run.stream.step())
    assert step_under_way(run.engine) is None
    run.apply(run.stream.step({"a": 10}, is_failed=True))
    assert step_under_way(run.engine) is None


def test_a_step_whose_answer_was_lost_is_not_under_way_for_ever(run: Run) -> None:
    run.apply(run.stream.step({"a": 10}, is_answered=False))
    found = step_under_way(run.engine)
    assert found is not None
    assert found.step == 1
    run.apply(run.stream.submit("b"))
    run.apply(run.stream.step({"b": 10}))
    assert step_under_way(run.engine) is None


def test_an_engine_that_is_gone_is_in_no_step(run: Run) -> None:
    run.apply(run.stream.step({"a": 10}, is_answered=False))
    run.apply([(ENGINE, SourceGone())])
    assert step_under_way(run.engine) is None
