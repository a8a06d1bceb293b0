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


def test_a_pipelines_forward_pass_is_from_the_first_stage_to_the_last() -> None:
    facts = step()
    first = facts.workers[0]
    facts.num_shards = 1
    second = first._replace(
        rank=1,
        received_at=first.received_at + 10,
        prepared_at=first.prepared_at + 300,
        forwarded_at=first.forwarded_at + 500,
        sample_begun_at=first.sample_begun_at + 500,
        sampled_at=first.sampled_at + 500,
    )
    facts.workers = [second, first]
    phases = phase_ns(facts)
    assert [[worker.rank for worker in stage] for stage in facts.stages] == [[0], [1]]
    assert phases["prepare"] == first.prepared_at - first.received_at
    assert phases["forward"] == second.forwarded_at - first.prepared_at
    assert facts.answered is not None
    assert sum(phases.values()) == facts.answered.updated_at - facts.planned.schedule_begun_at
