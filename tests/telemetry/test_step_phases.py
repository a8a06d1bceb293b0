from metric_facts import MetricFacts

from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_phases import phase_ns


def step() -> StepFacts:
    facts = MetricFacts()
    facts.describe()
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    found = facts.state.engines["0"].steps.last
    assert found is not None
    return found


def test_phases_are_those_of_the_rank_that_ended_last() -> None:
    facts = step()
    late = facts.workers[0]._replace(rank=1, forwarded_at=facts.workers[0].forwarded_at + 500)
    late = late._replace(sampled_at=late.sampled_at + 200)
    facts.workers.append(late)
    phases = phase_ns(facts)
    assert phases["forward"] == 1_000_500
    assert facts.answered is not None
    assert sum(phases.values()) == facts.answered.updated_at - facts.planned.schedule_begun_at


def test_a_step_without_ranks_has_what_the_core_saw() -> None:
    facts = step()
    facts.workers.clear()
    assert set(phase_ns(facts)) == {"schedule", "update", "other"}


def test_moments_out_of_order_are_no_phases() -> None:
    facts = step()
    facts.workers = [facts.workers[0]._replace(sample_begun_at=0)]
    assert phase_ns(facts) == {}
    facts.answered = None
    assert phase_ns(facts) == {}
