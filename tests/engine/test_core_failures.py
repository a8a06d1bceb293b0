"""The engine core's boundaries: what fails alone, what fails a batch, and what ends the process."""

from collections.abc import Callable
from typing import Any

import pytest
from core_bench import PROMPT, Bench, Seen
from fake_executor import expected_output, tiny_config

from vllm_obs.engine import scheduler_state, step_planner
from vllm_obs.engine.block_pool import BlockCountError
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.failure_streak import MAX_FAILED_STEPS
from vllm_obs.engine.messages import (
    FinishReason,
)
from vllm_obs.engine.plan import StepPlan
from vllm_obs.telemetry.records import (
    StepFailed,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def poison(monkeypatch: pytest.MonkeyPatch, request_id: str) -> None:
    def fault(site: str, name: str = "") -> None:
        if site == "scheduler" and name == request_id:
            raise RuntimeError("planted")

    monkeypatch.setattr(step_planner, "maybe_fault", fault)


def test_a_poison_request_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "bad")
    for name in ("a", "bad", "c"):
        bench.add(name, PROMPT, max_tokens=3)
    seen = bench.run()
    assert seen["bad"] == Seen([], FinishReason.ERROR, error=("internal_error", scheduler_state.INTERNAL_ERROR))
    assert seen["a"].token_ids == seen["c"].token_ids == expected_output(PROMPT, 3)
    assert bench.core.counters.num_failed_steps == 0
    assert bench.core.counters.num_failed_requests == 1


def test_an_error_while_a_running_sequence_grows_fails_it_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add("bad", [1, 2, 3, 4], max_tokens=9)
    bench.add("good", [5, 6, 7, 8], max_tokens=9)
    bench.step()
    kv_cache = bench.core.scheduler.kv_cache
    allocate = kv_cache.allocate_slots

    def failing(request: Any, *args: Any) -> Any:
        if request.request_id == "bad":
            raise RuntimeError("planted")
        return allocate(request, *args)

    monkeypatch.setattr(kv_cache, "allocate_slots", failing)
    seen = bench.run()
    assert seen["bad"].finish_reason == FinishReason.ERROR
    assert seen["good"].token_ids == expected_output([5, 6, 7, 8], 9)


def test_an_error_while_an_answer_is_applied_fails_its_row_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv_cache = bench.core.scheduler.kv_cache
    cache_blocks = kv_cache.cache_blocks

    def failing(request: Any, num_tokens: int) -> None:
        if request.request_id == "bad":
            raise RuntimeError("planted")
        cache_blocks(request, num_tokens)

    monkeypatch.setattr(kv_cache, "cache_blocks", failing)
    bench.add("bad", PROMPT, max_tokens=3)
    bench.add("good", PROMPT, max_tokens=3)
    seen = bench.run()
    assert (seen["bad"].token_ids, seen["bad"].finish_reason) == ([], FinishReason.ERROR)
    assert seen["good"].token_ids == expected_output(PROMPT, 3)


def test_a_row_with_broken_logits_fails_alone(bench: Bench) -> None:
    bench.executor.failing.add("bad")
    bench.add("bad", PROMPT)
    bench.add("good", PROMPT, max_tokens=3)
    seen = bench.run()
    assert seen["bad"].error == ("invalid_logits", "The logits are not numbers.")
    assert seen["good"].token_ids == expected_output(PROMPT, 3)


def fail_once(error: Exception) -> Callable[[StepPlan], None]:
    errors = [error]

    def hook(plan: StepPlan) -> None:
        if errors:
            raise errors.pop()

    return hook


def test_an_unexpected_error_in_a_step_fails_its_batch_and_the_engine_goes_on() -> None:
    bench = Bench(config=tiny_config(max_num_seqs=2))
    bench.executor.before_execute = fail_once(RuntimeError("secret detail"))
    for name in ("a", "b", "later"):
        bench.add(name, PROMPT, max_tokens=3)
    seen = bench.run()
    for name in ("a", "b"):
        assert seen[name] == Seen([], FinishReason.ERROR, error=("internal_error", scheduler_state.INTERNAL_ERROR))
    assert seen["later"].token_ids == expected_output(PROMPT, 3)
    (failed,) = bench.recorder.of(StepFailed)
    assert failed.request_ids == ["a", "b"]  # type: ignore[union-attr]
    assert bench.core.counters.num_failed_steps == 1


def test_an_error_while_sampling_fails_the_batch(bench: Bench) -> None:
    def broken() -> None:
        raise RuntimeError("planted")

    bench.add("a", PROMPT, max_tokens=5)
    bench.step()
    bench.executor.before_sample = broken
    bench.step()
    assert bench.seen["a"].error is not None
    assert bench.seen["a"].token_ids == expected_output(PROMPT, 1)


@pytest.mark.parametrize(("method", "fails"), [("update_from_output", True), ("schedule", False)])
def test_an_error_in_the_scheduler_fails_what_runs_and_not_what_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, fails: bool
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("planted")

    bench.add("a", PROMPT, max_tokens=5)
    with monkeypatch.context() as patch:
        patch.setattr(bench.core.scheduler, method, broken)
        bench.step()
    bench.add("b", PROMPT, max_tokens=5)
    seen = bench.run()
    assert (seen["a"].error is not None) == fails
    assert seen["b"].token_ids == expected_output(PROMPT, 5)


def test_what_a_failed_step_should_have_released_is_released_by_the_next() -> None:
    bench = Bench()
    bench.add("a", PROMPT, max_tokens=1)
    bench.step()
    bench.add("b", PROMPT, max_tokens=1)
    bench.executor.before_execute = fail_once(RuntimeError("planted"))
    bench.run()
    assert bench.executor.row_ids == set()


def test_the_third_failed_step_in_a_row_is_raised() -> None:
    bench = Bench(config=tiny_config(max_num_seqs=1))

    def always(plan: StepPlan) -> None:
        raise RuntimeError("planted")

    bench.executor.before_execute = always
    for index in range(MAX_FAILED_STEPS + 1):
        bench.add(f"r{index}", PROMPT)
    for _ in range(MAX_FAILED_STEPS - 1):
        bench.step()
    with pytest.raises(EngineDeadError, match="3 steps failed in a row"):
        bench.step()


def test_a_step_that_works_ends_a_row_of_failures() -> None:
    bench = Bench(config=tiny_config(max_num_seqs=1))
    for index in range(10):
        bench.executor.before_execute = fail_once(RuntimeError("planted"))
        bench.add(f"bad{index}", PROMPT, max_tokens=1)
        bench.add(f"good{index}", PROMPT, max_tokens=1)
        bench.run()
        assert bench.seen[f"good{index}"].token_ids == expected_output(PROMPT, 1)
    assert bench.core.counters.num_failed_steps == 10


def test_wrong_books_after_an_error_are_raised_at_once(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=5)
    bench.step()
    bench.core.scheduler.running[0].block_ids.pop()
    bench.executor.before_execute = fail_once(RuntimeError("planted"))
    with pytest.raises(BlockCountError, match="1 references, 0 tables"):
        bench.step()


def test_a_dead_executor_is_raised_at_once(bench: Bench) -> None:
    bench.add("a", PROMPT)
    bench.executor.before_execute = fail_once(EngineDeadError("rank 1 is gone"))
    with pytest.raises(EngineDeadError, match="rank 1 is gone"):
        bench.step()


BROKEN_SAMPLER = ("internal_error", "The request failed inside the engine.")


def test_a_sampler_that_fails_for_everybody_is_the_engine_s_end() -> None:
    """One after the other, and each with chunks of its prompt before: nobody gets a token."""
    bench = Bench(config=tiny_config(max_num_batched_tokens=6))
    bench.executor.failure = BROKEN_SAMPLER
    bench.executor.failing = {f"r{index}" for index in range(MAX_FAILED_STEPS)}
    for index in range(MAX_FAILED_STEPS - 1):
        bench.add(f"r{index}", [index, *PROMPT])
        assert bench.run()[f"r{index}"].error == BROKEN_SAMPLER
    bench.add(f"r{MAX_FAILED_STEPS - 1}", PROMPT)
    with pytest.raises(EngineDeadError, match="3 steps failed in a row, the last with rows that"):
        bench.run()


@pytest.mark.parametrize("failure", [BROKEN_SAMPLER, ("invalid_logits", "The logits are not numbers.")])
def test_rows_that_fail_while_others_get_tokens_are_their_own_fault(failure: tuple[str, str]) -> None:
    bench = Bench()
    bench.executor.failure = failure
    for index in range(2 * MAX_FAILED_STEPS):
        bench.executor.failing.add(f"bad{index}")
        bench.add(f"bad{index}", [index, *PROMPT])
        bench.add(f"good{index}", PROMPT, max_tokens=1)
        bench.run()
    assert [bench.seen[f"bad{index}"].error for index in range(2 * MAX_FAILED_STEPS)] == [failure] * 6


def test_rows_without_numbers_are_no_failure_of_the_sampler(bench: Bench) -> None:
    for index in range(2 * MAX_FAILED_STEPS):
        bench.executor.failing.add(f"bad{index}")
        bench.add(f"bad{index}", PROMPT)
        assert bench.run()[f"bad{index}"].finish_reason == FinishReason.ERROR
