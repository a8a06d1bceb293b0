"""What a core that begins steps ahead records breaks no law, and counts what was used as if it did not."""

import pytest
from charged_core import ChargedCore, check_settled
from core_bench import Bench
from fake_executor import expected_output, tiny_config
from metric_facts import CORE, MetricFacts

from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.telemetry.records import StepAnswered, StepPlanned, WorkerStep

MS = 10**6
COUNTED = (
    "vllm:iteration_tokens_total_sum",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm_obs_wasted_rows_total",
)


@pytest.mark.parametrize("seed", range(6))
def test_no_law_is_broken_and_nothing_stays_open(seed: int) -> None:
    core = ChargedCore(seed, is_ahead=True)
    core.run(150)
    check_settled(core)
    totals = core.economics.engines["0"].totals
    assert totals.held_block_ns == totals.core_block_ns == pytest.approx(core.pool_ns, rel=1e-3)
    assert totals.num_wasted_rows == core.core.counters.num_wasted_rows > 0  # type: ignore[union-attr]
    assert core.state.views.num_errors == 0


def counted(is_ahead: bool) -> dict[str, float]:
    """What metrics say of a load in which some end by their length, some by a token and one by an abort."""
    bench = Bench(64, tiny_config(enable_prefix_caching=False, async_scheduling=is_ahead))
    facts = MetricFacts()
    for number in range(12):
        prompt = [number, *range(1, 2 + number)]
        stop = expected_output(prompt, 6)[number % 6]
        facts.submit(f"r{number}", len(prompt))
        bench.now = facts.now
        sampling = SamplingSpec(max_tokens=20 if number % 3 else 6, stop_token_ids=(stop,) if number % 3 else ())
        bench.add(f"r{number}", prompt, sampling=sampling)
    seen = bench.run()
    assert {one.finish_reason for one in seen.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    for record in bench.recorder.records:
        facts.tell(CORE, record)
    assert [each for each in facts.state.invariants.breaches() if each.num_broken] == []
    return facts.samples(*COUNTED)


def test_metrics_count_what_was_used_and_the_wasted_rows_apart() -> None:
    at_once, ahead = counted(is_ahead=False), counted(is_ahead=True)
    assert ahead.pop("vllm_obs_wasted_rows_total") == 8, "one for each that stopped by a token"
    assert ahead == at_once


def test_a_rank_is_at_one_step_at_a_time() -> None:
    """It takes the next plan while its device runs the last one: that is the last one's time."""
    facts = MetricFacts()
    facts.describe(world_size=1)
    begun_at = facts.now
    for number in (1, 2, 3):
        at = begun_at + 10 * number * MS
        columns = [["a"], [1], [0], [0]]
        facts.tell(CORE, StepPlanned(number, at, at + 1, *columns, [], [], [], [], [], [], "", 1, 0, 0, 0, 0))
        if number > 1:
            end = at + 4 * MS
            facts.tell(
                CORE, WorkerStep(number - 1, 0, at - 9 * MS, at - 8 * MS, at - 8 * MS, at - 7 * MS, end, 1, 1)
            )
            facts.tell(CORE, StepAnswered(number - 1, end, end + 1, end + 2, [], [], 0))
    steps = list(facts.state.engines["0"].steps)
    assert [step.worker_ns for step in steps] == [13 * MS, 10 * MS, 0]
