"""How long a sequence was held up is measured where it happens, and nobody else is looked at."""

import pytest
from fake_executor import make_request

from vllm_obs.engine.detours import DetourClock
from vllm_obs.engine.messages import Detours
from vllm_obs.engine.request import Request
from vllm_obs.engine.step_decisions import StepDecisions


class Core:
    """Two running sequences of which the first has a token, and a clock that is told about them."""

    def __init__(self) -> None:
        self.clock = DetourClock()
        self.requests = {name: Request(make_request(name, [1, 2]), (0, 0), 100) for name in ("old", "new")}
        self.num_answered = 0
        self.last_steps: dict[str, int] = {}
        self.token("old", 5)

    def plan(self, at: int, **decisions: list[str]) -> None:
        fields = {f"{name}_ids": ids for name, ids in decisions.items()}
        decisions_made = StepDecisions(**fields)  # type: ignore[arg-type]
        self.clock.planned(decisions_made, self.requests.get, lambda name: self.last_steps.get(name, 0), at)

    def token(self, name: str, at: int) -> None:
        request = self.requests[name]
        request.num_tokens += 1
        self.answer(at, request)

    def answer(self, at: int, *requests: Request) -> None:
        self.num_answered += 1
        self.clock.answered(self.num_answered, requests, self.requests.get, at)

    def resume(self) -> None:
        self.clock.resumed(self.requests.values(), lambda name: self.last_steps.get(name, 0))

    def told(self, name: str) -> Detours | None:
        return self.requests[name].untold_detours


@pytest.fixture
def core() -> Core:
    return Core()


def test_the_straight_way_is_not_measured(core: Core) -> None:
    core.plan(10, admitted=["new"])
    core.token("new", 12)
    core.clock.ended("new")
    assert (len(core.clock), core.told("old"), core.told("new")) == (0, None, None)


def test_a_stall_is_from_the_end_of_the_last_step_to_the_next_plan_with_it(core: Core) -> None:
    core.plan(10, left_out=["old"])
    core.plan(20, left_out=["old"])
    assert core.told("old") is None
    core.plan(30)
    assert core.told("old") == Detours(stalled_ns=25)


def test_a_preemption_ends_with_the_plan_that_resumes_it_and_recomputing_with_a_token(core: Core) -> None:
    core.plan(10, preempted=["old"])
    core.plan(14)
    core.plan(20, resumed=["old"])
    core.answer(23)
    core.plan(25)
    core.token("old", 31)
    assert core.told("old") == Detours(preempted_ns=10, recompute_ns=11)


def test_what_is_left_out_while_it_computes_again_goes_on_with_that(core: Core) -> None:
    core.plan(10, preempted=["old"])
    core.plan(20, resumed=["old"])
    core.answer(22)
    core.plan(30, left_out=["old"])
    core.plan(40)
    core.token("old", 45)
    assert core.told("old") == Detours(preempted_ns=10, recompute_ns=2 + 5, stalled_ns=18)


def test_one_that_is_preempted_while_it_is_left_out_is_preempted(core: Core) -> None:
    core.plan(10, left_out=["old"])
    core.plan(20, preempted=["old"])
    core.plan(30, resumed=["old"])
    assert core.told("old") == Detours(stalled_ns=15, preempted_ns=10)


def test_who_is_left_out_while_a_step_runs_it_stalls_from_that_steps_answer_on(core: Core) -> None:
    core.last_steps["old"] = core.num_answered + 1
    core.plan(10, left_out=["old"])
    core.token("old", 14)
    core.last_steps.clear()
    core.plan(20)
    assert core.told("old") == Detours(stalled_ns=6)


def test_who_is_in_the_plan_after_it_has_not_stalled(core: Core) -> None:
    core.last_steps["old"] = core.num_answered + 1
    core.plan(10, left_out=["old"])
    core.plan(12)
    core.token("old", 14)
    core.plan(20)
    assert core.told("old") is None


def test_what_was_before_the_first_token_is_told_apart(core: Core) -> None:
    core.plan(10, left_out=["new"])
    core.plan(20)
    core.token("new", 25)
    core.plan(30, left_out=["new"])
    core.plan(40)
    assert core.told("new") == Detours(stalled_ns=15 + 15, early_ns=15)


def test_a_pause_without_a_step_is_a_stall_of_all_that_run(core: Core) -> None:
    core.clock.paused(10)
    core.resume()
    core.plan(50)
    assert (core.told("old"), core.told("new")) == (Detours(stalled_ns=40), Detours(stalled_ns=40, early_ns=40))


def test_a_pause_holds_up_from_the_end_of_the_step_that_was_under_way(core: Core) -> None:
    core.clock.paused(10)
    core.token("old", 20)
    core.last_steps["new"] = core.num_answered + 1
    core.resume()
    core.plan(50)
    assert (core.told("old"), core.told("new")) == (Detours(stalled_ns=30), None)


def test_a_pause_in_which_steps_go_on_stalls_nobody(core: Core) -> None:
    core.clock.paused(10)
    core.plan(15)
    core.token("old", 20)
    core.resume()
    core.plan(50)
    assert (core.told("old"), core.told("new")) == (None, None)


def test_after_a_failed_step_a_stall_begins_at_the_failure(core: Core) -> None:
    core.clock.failed(8)
    core.plan(10, left_out=["old"])
    core.plan(11)
    assert core.told("old") == Detours(stalled_ns=3)


def test_nothing_is_kept_of_those_who_left(core: Core) -> None:
    core.plan(10, preempted=["old"], left_out=["new"])
    core.plan(20, resumed=["old"], left_out=["new"])
    for name in ("old", "new"):
        del core.requests[name]
        core.clock.ended(name)
    core.plan(30)
    core.answer(35)
    core.plan(40, preempted=["old"], resumed=["old"], left_out=["new"])
    assert len(core.clock) == 0
