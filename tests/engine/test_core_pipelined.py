"""The engine core with several steps under way: who is in which, and what a failure, an abort or a pause does."""

from itertools import combinations
from random import Random
from typing import Any

import pytest
from core_bench import PROMPT, Bench
from fake_executor import expected_output, make_request, tiny_config
from pipelined_executor import PipelinedExecutor, pipelined

from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.plan import StepPlan
from vllm_obs.telemetry.records import RequestReleased, StepAnswered, StepFailed, StepPlanned


class PipelinedBench(Bench):
    """A core over a pipeline of stages."""

    executor: PipelinedExecutor

    def __init__(self, num_stages: int = 2, num_blocks: int = 32, **fields: Any) -> None:
        super().__init__(num_blocks)
        config = pipelined(num_stages, tiny_config(**fields))
        self.executor = PipelinedExecutor(num_blocks, config.cache.block_size)
        self.core = EngineCore(config, self.executor, self.recorder, self.tick)

    def rows(self) -> list[list[str]]:
        """Who was in each plan that was sent."""
        return [plan.row_ids for plan in self.executor.launched]


def test_sequences_are_spread_over_the_steps_that_fill_the_pipeline() -> None:
    bench = PipelinedBench()
    for name in "abcd":
        bench.add(name, [1, 2, 3], max_tokens=3)
    seen = bench.run()
    assert bench.rows()[:6] == [["a", "b"], ["c", "d"]] * 3
    assert bench.executor.most_in_flight == 2
    assert {name: one.token_ids for name, one in seen.items()} == dict.fromkeys(
        "abcd", expected_output([1, 2, 3], 3)
    )


def test_a_sequence_alone_has_one_step_under_way_and_leaves_no_empty_ones() -> None:
    bench = PipelinedBench(3)
    bench.add("a", [1, 2, 3], max_tokens=4)
    bench.run()
    assert bench.rows() == [["a"]] * 4 + [[]]
    assert bench.recorder.of(StepPlanned)[-2].left_out_ids == []


def test_the_chunks_of_a_long_prompt_follow_each_other_into_the_pipeline() -> None:
    bench = PipelinedBench(3, max_num_batched_tokens=4)
    bench.add("a", PROMPT, max_tokens=1)
    bench.step()
    assert bench.rows() == [["a"]] * 3
    assert [plan.num_tokens for plan in bench.executor.launched] == [4, 4, 2]
    assert bench.run()["a"].token_ids == expected_output(PROMPT, 1)


def test_nobody_counts_as_held_up_while_a_step_under_way_runs_it() -> None:
    bench = PipelinedBench(2, max_num_batched_tokens=4)
    bench.add("long", PROMPT, max_tokens=2)
    bench.add("late", [7, 8], max_tokens=2)
    bench.run()
    left_out = [planned.left_out_ids for planned in bench.recorder.of(StepPlanned)]
    in_flight: list[str] = []
    for planned, answered in zip(bench.recorder.of(StepPlanned), left_out, strict=True):
        assert not set(answered) & set(in_flight)
        in_flight = planned.request_ids


def test_answers_are_recorded_in_the_order_of_their_steps_each_once() -> None:
    bench = PipelinedBench(3, max_num_seqs=6)
    for name in "abcdef":
        bench.add(name, [1, 2, 3], max_tokens=5)
    bench.run()
    planned = [record.step for record in bench.recorder.of(StepPlanned) if record.request_ids]
    assert [record.step for record in bench.recorder.of(StepAnswered)] == planned
    for record in bench.recorder.of(StepAnswered):
        assert record.executed_at <= record.sampled_at <= record.updated_at
    for message in bench.messages:
        assert message.step in planned


def test_a_sequence_aborted_while_its_step_is_under_way_wastes_its_row() -> None:
    bench = PipelinedBench()
    for name in "abcd":
        bench.add(name, [1, 2, 3], max_tokens=6)
    bench.step()
    bench.abort("c")
    assert bench.core.scheduler.kv_cache.pool.num_active == 4, "a plan under way still names its blocks"
    seen = bench.run()
    assert (seen["c"].token_ids, seen["c"].finish_reason) == ([], FinishReason.ABORT)
    assert bench.core.counters.num_wasted_rows == 1
    for name in "abd":
        assert seen[name].token_ids == expected_output([1, 2, 3], 6)
    released = [record.request_id for record in bench.recorder.of(RequestReleased)]
    assert sorted(released) == ["a", "b", "c", "d"]


def fail_at(*numbers: int) -> Any:
    seen: list[int] = []

    def hook(plan: StepPlan) -> None:
        seen.append(plan.step)
        if len(seen) in numbers:
            raise RuntimeError("planted")

    return hook


def test_a_step_that_fails_takes_those_under_way_with_it_and_the_engine_goes_on() -> None:
    bench = PipelinedBench(3)
    bench.executor.before_execute = fail_at(2)
    for name in "abc":
        bench.add(name, [1, 2, 3], max_tokens=3)
    bench.step()
    bench.step()
    bench.add("later", [4, 5], max_tokens=3)
    seen = bench.run()
    assert {seen[name].finish_reason for name in "abc"} == {FinishReason.ERROR}
    assert seen["later"].token_ids == expected_output([4, 5], 3)
    failed = bench.recorder.of(StepFailed)
    planned = {record.step for record in bench.recorder.of(StepPlanned) if record.request_ids}
    answered = {record.step for record in bench.recorder.of(StepAnswered)}
    assert planned == answered | {record.step for record in failed}
    assert sorted(name for record in failed for name in record.request_ids) == ["a", "b", "c"]
    assert bench.core.counters.num_failed_steps == 1


def test_what_a_step_that_was_given_up_should_have_released_is_released_by_the_next() -> None:
    bench = PipelinedBench(3)
    bench.executor.before_execute = fail_at(4, 5)
    for name in "abc":
        bench.add(name, [1, 2, 3], max_tokens=9)
    bench.step()
    bench.step()
    bench.abort("b")
    bench.run()
    assert bench.executor.launched[4].released_ids == ["b"]
    assert [failed.step for failed in bench.recorder.of(StepFailed)] == [4, 5]
    assert bench.executor.row_ids == set()


def test_a_dead_rank_ends_the_core_with_steps_under_way() -> None:
    bench = PipelinedBench()

    def die(plan: StepPlan) -> None:
        raise EngineDeadError("Worker_TP0_PP1 was killed by SIGKILL")

    bench.executor.before_execute = die
    bench.add("a", [1, 2, 3])
    bench.add("b", [1, 2, 3])
    with pytest.raises(EngineDeadError, match="Worker_TP0_PP1"):
        bench.step()


def test_a_pause_lets_the_steps_under_way_come_to_their_end() -> None:
    bench = PipelinedBench()
    for name in "ab":
        bench.add(name, [1, 2, 3], max_tokens=4)
    bench.step()
    bench.core.call_utility("pause_scheduler", ["keep"])
    while bench.core.has_work():
        bench.step()
    assert [len(bench.seen[name].token_ids) for name in "ab"] == [1, 1]
    bench.core.call_utility("resume_scheduler", [])
    seen = bench.run()
    assert seen["a"].token_ids == seen["b"].token_ids == expected_output([1, 2, 3], 4)


@pytest.mark.parametrize("seed", range(12))
def test_random_arrivals_and_aborts_over_a_small_cache(seed: int) -> None:
    draw = Random(seed)
    num_stages = draw.randint(2, 4)
    bench = PipelinedBench(
        num_stages,
        num_blocks=draw.randint(8, 20),
        max_model_len=24,
        block_size=2,
        max_num_seqs=draw.randint(1, 6),
        max_num_batched_tokens=draw.randint(1, 8),
        policy=draw.choice(["fcfs", "priority"]),
    )
    prompts: dict[str, list[int]] = {}
    wanted: dict[str, int] = {}
    for _ in range(150):
        if draw.random() < 0.3:
            name = f"r{len(prompts)}"
            prompts[name] = [draw.randint(0, 2) for _ in range(draw.randint(1, 9))]
            wanted[name] = draw.randint(1, 7)
            message = make_request(name, prompts[name], wanted[name], priority=draw.randint(0, 2))
            bench.core.add_request(message)
        if prompts and draw.random() < 0.05:
            bench.abort(draw.choice(list(prompts)))
        if bench.core.has_work():
            bench.step()
            bench.core.scheduler.check()
            _check_plans(bench, num_stages)
    seen = bench.run(2000)
    for name, one in seen.items():
        assert one.token_ids == expected_output(prompts[name], len(one.token_ids))
        assert one.finish_reason == FinishReason.ABORT or len(one.token_ids) == wanted[name]
    assert set(seen) == set(prompts)
    assert bench.executor.most_in_flight <= num_stages
    assert bench.executor.row_ids == set()


def _check_plans(bench: PipelinedBench, num_stages: int) -> None:
    """No sequence whose token is awaited is in a later step."""
    in_flight = bench.core.scheduler._state.in_flight
    assert len(in_flight) <= num_stages
    for step, later in combinations(in_flight, 2):
        awaited = {request.request_id for request in step.sampled} - step.dropped
        assert not awaited & {request.request_id for request in later.requests}
