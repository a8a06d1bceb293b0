"""Who makes room for whom: preemption, policies, aborts, and sequences too long for the cache."""

import random
from collections.abc import Callable

import pytest
from fake_executor import expected_output, tiny_config
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.messages import FinishReason

PROMPT = list(range(100, 110))


def test_the_same_tokens_come_out_of_a_tiny_cache_in_tiny_chunks() -> None:
    prompts = {f"r{index}": [index] * (3 + 5 * index % 11) for index in range(6)}

    def outputs(num_blocks: int, budget: int) -> tuple[dict[str, list[int]], int]:
        driver = SchedulerDriver(num_blocks, tiny_config(max_num_batched_tokens=budget))
        for request_id, prompt in prompts.items():
            driver.add(request_id, prompt, max_tokens=14)
        driver.run()
        driver.check_idle()
        return {request_id: driver.output_of(request_id) for request_id in prompts}, driver.scheduler.stats()[3]

    expected = {request_id: expected_output(prompt, 14) for request_id, prompt in prompts.items()}
    assert outputs(num_blocks=100, budget=100) == (expected, 0)
    tiny, num_preemptions = outputs(num_blocks=8, budget=3)
    assert tiny == expected
    assert num_preemptions > 0


def test_the_last_arrival_is_preempted_and_resumes_in_front_with_all_its_tokens() -> None:
    driver = SchedulerDriver(num_blocks=6, config=tiny_config(enable_prefix_caching=False))
    driver.add("a", [1] * 7, max_tokens=14)
    driver.add("b", [2] * 7, max_tokens=6)
    driver.add("c", [3] * 7, max_tokens=2)
    steps = []
    while not steps or not steps[-1].decisions.preempted_ids:
        steps.append(driver.step())
    assert steps[-1].decisions.preempted_ids == ["c"]
    assert steps[-1].plan.released_ids == ["c"]
    assert steps[-1].decisions.head_reason == "kv_blocks"

    later = driver.run()
    resumed = next(step for step in later if step.decisions.resumed_ids)
    row = resumed.plan.new_rows[0]
    num_known = len(row.token_ids)
    assert (row.request_id, row.num_prompt_tokens, num_known > 7) == ("c", 7, True)
    assert row.token_ids.tolist() == [3] * 7 + expected_output([3] * 7, 2)[: num_known - 7]
    assert driver.output_of("c") == expected_output([3] * 7, 2)
    driver.check_idle()


def test_recomputing_after_preemption_is_no_cache_hit() -> None:
    driver = SchedulerDriver(num_blocks=6)
    driver.add("a", [1] * 7, max_tokens=10)
    second = driver.add("b", [2] * 9, max_tokens=10)
    driver.run()
    assert second.num_preemptions > 0
    assert second.num_cached_tokens == 0
    assert driver.output_of("b") == expected_output([2] * 9, 10)


def test_under_priority_the_least_urgent_is_preempted_even_if_it_came_first() -> None:
    driver = SchedulerDriver(num_blocks=4, config=tiny_config(policy="priority"))
    driver.add("idle", [1] * 7, max_tokens=6, priority=5)
    driver.add("urgent", [2] * 7, max_tokens=6, priority=-1)
    preempting = None
    while preempting is None:
        step = driver.step()
        preempting = step if step.decisions.preempted_ids else None
    assert preempting.decisions.preempted_ids == ["idle"]
    assert preempting.decisions.head_reason == "priority"
    driver.run()
    assert list(driver.ended) == ["urgent", "idle"]
    driver.check_idle()


def test_under_priority_equal_urgency_means_first_come_first_served() -> None:
    driver = SchedulerDriver(config=tiny_config(policy="priority", max_num_seqs=1))
    for name, priority in [("late", 2), ("b", 1), ("c", 1), ("first", 0)]:
        driver.add(name, [1], max_tokens=1, priority=priority)
    driver.run()
    assert list(driver.ended) == ["first", "b", "c", "late"]


def test_under_fcfs_priority_means_nothing() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_seqs=1))
    driver.add("a", [1], max_tokens=1, priority=9)
    driver.add("b", [1], max_tokens=1, priority=0)
    driver.run()
    assert list(driver.ended) == ["a", "b"]


def test_a_head_that_does_not_fit_keeps_its_place_from_those_behind_it() -> None:
    driver = SchedulerDriver(num_blocks=4)
    driver.add("a", [1] * 8, max_tokens=2)
    driver.add("big", [2] * 9, max_tokens=1)
    driver.add("small", [3], max_tokens=1)
    step = driver.step()
    assert driver.running_ids == ["a"]
    assert step.decisions.head_reason == "kv_blocks"
    driver.run()
    assert list(driver.ended) == ["a", "big", "small"]


def test_a_preempted_sequence_comes_back_only_with_a_block_to_spare_for_each_that_runs() -> None:
    driver = SchedulerDriver(num_blocks=6, config=tiny_config(enable_prefix_caching=False))
    driver.add("a", [1] * 8, max_tokens=12)
    driver.add("b", [2] * 7, max_tokens=8)
    while not driver.requests["b"].num_preemptions:
        driver.step()
    num_known = driver.requests["b"].num_tokens
    pool = driver.scheduler.kv_cache.pool
    while "b" not in driver.running_ids:
        fits_exactly = pool.num_available == driver.scheduler.kv_cache.num_blocks_for(num_known)
        step = driver.step()
        assert not (fits_exactly and step.decisions.resumed_ids and step.plan.running_ids)
    driver.run()
    assert driver.requests["b"].num_preemptions == 1
    driver.check_idle()


def test_a_sequence_that_outgrows_the_whole_cache_ends_with_an_error() -> None:
    driver = SchedulerDriver(num_blocks=3)
    driver.add("a", [1] * 6, max_tokens=30)
    driver.run()
    assert driver.ended["a"].finish_reason == FinishReason.ERROR
    assert driver.ended["a"].error == (
        "context_length_exceeded",
        "13 tokens need 4 KV cache blocks; the cache has 3.",
    )
    assert driver.output_of("a") == expected_output([1] * 6, 7)
    driver.check_idle()


def test_a_prompt_larger_than_the_cache_does_not_block_the_queue() -> None:
    driver = SchedulerDriver(num_blocks=2)
    driver.add("a", [1] * 9, max_tokens=1)
    driver.add("b", [1], max_tokens=1)
    driver.run()
    assert {name: request.finish_reason for name, request in driver.ended.items()} == {
        "a": FinishReason.ERROR,
        "b": FinishReason.LENGTH,
    }


def waiting(driver: SchedulerDriver) -> bool:
    return driver.requests["victim"].num_computed_tokens == 0


def prefilling(driver: SchedulerDriver) -> bool:
    return 0 < driver.requests["victim"].num_computed_tokens < 7


def decoding(driver: SchedulerDriver) -> bool:
    return driver.requests["victim"].num_output_tokens > 0


def preempted(driver: SchedulerDriver) -> bool:
    return driver.requests["victim"].num_preemptions > 0


@pytest.mark.parametrize("state", [waiting, prefilling, decoding, preempted])
def test_aborting_in_any_state_gives_the_blocks_back(state: Callable[[SchedulerDriver], bool]) -> None:
    driver = SchedulerDriver(num_blocks=6, config=tiny_config(max_num_batched_tokens=5))
    driver.add("a", [9] * 7, max_tokens=12)
    driver.add("victim", [8] * 7, max_tokens=12)
    while not state(driver):
        driver.step()

    driver.abort("victim")
    assert driver.ended["victim"].finish_reason == FinishReason.ABORT
    driver.run()
    assert driver.output_of("a") == expected_output([9] * 7, 12)
    assert driver.executor.row_ids == set()
    driver.check_idle()


def test_aborting_twice_or_the_unknown_does_nothing() -> None:
    driver = SchedulerDriver()
    driver.add("a", PROMPT)
    assert driver.abort("a") is not None
    assert driver.abort("a") is None
    assert driver.abort("never seen") is None


def test_an_id_may_come_again_after_its_abort() -> None:
    driver = SchedulerDriver()
    driver.add("a", PROMPT, max_tokens=4)
    driver.step()
    driver.abort("a")
    driver.add("a", [5, 6], max_tokens=3)
    step = driver.step()
    assert (step.plan.released_ids, step.plan.row_ids) == (["a"], ["a"])
    driver.run()
    assert driver.output_of("a") == expected_output([5, 6], 3)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_storm_of_preemptions_and_aborts_ends_with_progress_between_preemptions(policy: str) -> None:
    draw = random.Random(7)
    config = tiny_config(max_model_len=84, max_num_seqs=16, max_num_batched_tokens=32, policy=policy)
    driver = SchedulerDriver(num_blocks=24, config=config)
    for index in range(64):
        prompt = [draw.randrange(900) for _ in range(draw.randrange(1, 40))]
        driver.add(f"r{index}", prompt, max_tokens=draw.randrange(1, 40), priority=draw.randrange(3))

    lengths_at_preemption: dict[str, list[int]] = {}
    for _ in range(2000):
        if not driver.scheduler.has_work():
            break
        for name in driver.step().decisions.preempted_ids:
            lengths_at_preemption.setdefault(name, []).append(driver.requests[name].num_output_tokens)
        if draw.random() < 0.05:
            driver.abort(f"r{draw.randrange(64)}")

    assert len(driver.ended) == 64
    assert len(lengths_at_preemption) > 10
    for lengths in lengths_at_preemption.values():
        assert max(lengths.count(length) for length in lengths) <= 2, "preempted again and again without a token"
    driver.check_idle()
