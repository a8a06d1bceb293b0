"""The scheduler's behaviour: budgets, chunks, prefix hits, preemption, policies, endings, and plans in flight."""

from collections.abc import Callable

import pytest
from fake_executor import expected_output, next_token, tiny_config
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.engine.wait_reason import PauseState

PROMPT = list(range(100, 110))


def tokens_by_step(driver: SchedulerDriver) -> list[dict[str, int]]:
    plans = [step.plan for step in driver.run()]
    return [dict(zip(plan.row_ids, plan.num_scheduled_tokens, strict=True)) for plan in plans if plan.num_rows]


def test_a_prompt_of_10_in_chunks_of_4_then_a_decode() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_batched_tokens=4))
    driver.add("a", PROMPT, max_tokens=2)

    assert tokens_by_step(driver) == [{"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}]
    assert driver.output_of("a") == expected_output(PROMPT, 2)
    assert driver.ended["a"].finish_reason == FinishReason.LENGTH
    driver.check_idle()


def test_a_plan_carries_new_rows_whole_and_running_rows_by_difference() -> None:
    driver = SchedulerDriver()
    driver.add("a", PROMPT, max_tokens=4)

    new = driver.step().plan
    assert [(row.request_id, row.token_ids.tolist(), row.num_prompt_tokens) for row in new.new_rows] == [
        ("a", PROMPT, 10)
    ]
    assert new.new_rows[0].block_ids == [0, 1, 2]
    assert (new.running_ids, new.num_scheduled_tokens, new.released_ids) == ([], [10], [])

    first = driver.step().plan
    tokens = expected_output(PROMPT, 4)
    assert first.running_ids == ["a"]
    assert first.running_num_computed_tokens == [10]
    assert first.running_last_token_ids == tokens[:1]
    assert first.running_new_blocks == [[]]
    driver.step()
    fourth = driver.step().plan
    assert fourth.running_new_blocks == [[3]]
    last = driver.step().plan
    assert (last.num_rows, last.released_ids) == (0, ["a"])
    assert driver.executor.row_ids == set()
    assert not driver.scheduler.has_work()


def test_a_prompt_chunk_of_one_token_names_no_sampled_token() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_batched_tokens=3))
    driver.add("a", PROMPT, max_tokens=2)
    plans = [step.plan for step in driver.run()]
    assert [plan.running_last_token_ids for plan in plans[1:4]] == [[-1], [-1], [-1]]


def test_running_sequences_come_before_waiting_ones_within_the_budget() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_batched_tokens=6))
    driver.add("a", [1, 2, 3], max_tokens=3)
    driver.add("b", list(range(8)), max_tokens=1)
    driver.add("c", [5], max_tokens=1)

    steps = driver.run()
    rows = [dict(zip(s.plan.row_ids, s.plan.num_scheduled_tokens, strict=True)) for s in steps if s.plan.num_rows]
    assert rows == [{"a": 3, "b": 3}, {"a": 1, "b": 5}, {"a": 1, "c": 1}]
    assert [step.decisions.head_reason for step in steps[:3]] == ["token_budget", "token_budget", ""]


def test_running_sequences_beyond_the_budget_are_named_with_their_reason() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_batched_tokens=4, policy="priority"))
    driver.add("idle", [1, 2], max_tokens=3, priority=1)
    driver.step()
    driver.add("urgent", [3] * 9, max_tokens=1, priority=0)
    assert driver.step().plan.num_scheduled_tokens == [3, 1]

    step = driver.step()
    assert (step.plan.row_ids, step.plan.num_scheduled_tokens) == (["urgent"], [4])
    assert (step.decisions.left_out_ids, step.decisions.left_out_reasons) == (["idle"], ["token_budget"])
    driver.run()
    assert driver.output_of("idle") == expected_output([1, 2], 3)


def test_without_chunks_a_prompt_waits_until_it_fits_the_step_whole() -> None:
    driver = SchedulerDriver(
        config=tiny_config(max_model_len=16, max_num_batched_tokens=16, enable_chunked_prefill=False)
    )
    driver.add("a", list(range(9)), max_tokens=2)
    driver.add("b", list(range(20, 30)), max_tokens=1)
    driver.add("c", [1], max_tokens=1)

    first = driver.step()
    assert first.plan.row_ids == ["a"]
    assert first.decisions.head_reason == "token_budget"
    assert driver.step().plan.num_scheduled_tokens == [10, 1, 1]


def test_without_chunks_the_step_must_hold_the_longest_prompt() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens is 16 .* at least max_model_len, 64"):
        SchedulerDriver(config=tiny_config(max_num_batched_tokens=16, enable_chunked_prefill=False))


@pytest.mark.parametrize("limits", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 0}])
def test_limits_that_let_nothing_run_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        SchedulerDriver(config=tiny_config(**limits))


def test_no_more_than_max_num_seqs_run_and_the_head_knows_why() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_seqs=2))
    for name in "abc":
        driver.add(name, [1, 2], max_tokens=2)
    assert driver.step().decisions.head_reason == "max_num_seqs"
    assert driver.running_ids == ["a", "b"]
    driver.run()
    driver.check_idle()


def test_a_shared_prefix_is_computed_once_and_counted() -> None:
    driver = SchedulerDriver()
    first = driver.add("a", PROMPT, max_tokens=4)
    driver.run()
    second = driver.add("b", [*PROMPT, 7, 8], max_tokens=4)
    step = driver.step()

    assert step.plan.new_rows[0].num_computed_tokens == 8
    assert step.plan.num_scheduled_tokens == [4]
    assert step.decisions.admitted_cached_tokens == [8]
    driver.run()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 8)
    assert driver.output_of("b") == expected_output([*PROMPT, 7, 8], 4)
    driver.check_idle()


def test_generated_tokens_are_found_too_by_the_next_turn_of_a_conversation() -> None:
    driver = SchedulerDriver()
    driver.add("a", PROMPT, max_tokens=8)
    driver.run()
    turn = PROMPT + driver.output_of("a") + [1, 2]
    request = driver.add("b", turn, max_tokens=1)
    driver.run()
    assert request.num_cached_tokens == 16


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


def stop_case(**sampling: object) -> tuple[int, int, int]:
    """(finish reason, stop token, number of tokens) of a sequence with up to 6 tokens."""
    driver = SchedulerDriver()
    driver.add("a", PROMPT, sampling=SamplingSpec(max_tokens=6)._replace(**sampling))
    driver.run()
    request = driver.ended["a"]
    return request.finish_reason, request.stop_token_id, request.num_output_tokens


def test_endings_end_of_sequence_stop_token_and_length() -> None:
    tokens = expected_output(PROMPT, 6)
    assert len(set(tokens)) == 6
    third = tokens[2]
    assert stop_case() == (FinishReason.LENGTH, -1, 6)
    assert stop_case(eos_token_ids=(third,)) == (FinishReason.STOP, -1, 3)
    assert stop_case(stop_token_ids=(tokens[4], third)) == (FinishReason.STOP, third, 3)
    assert stop_case(stop_token_ids=(third,), eos_token_ids=(third,)) == (FinishReason.STOP, -1, 3)
    assert stop_case(stop_token_ids=(third,), min_tokens=4) == (FinishReason.LENGTH, -1, 6)
    assert stop_case(stop_token_ids=(third,), min_tokens=3) == (FinishReason.STOP, third, 3)
    assert stop_case(stop_token_ids=(tokens[5],)) == (FinishReason.STOP, tokens[5], 6)


def test_a_sequence_ends_at_the_context_length() -> None:
    driver = SchedulerDriver(config=tiny_config(max_model_len=12))
    driver.add("a", PROMPT, max_tokens=100)
    driver.run()
    assert (driver.ended["a"].finish_reason, driver.ended["a"].num_tokens) == (FinishReason.LENGTH, 12)


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


def test_blocks_of_a_sequence_aborted_in_flight_are_kept_until_the_step_answers() -> None:
    driver = SchedulerDriver(num_blocks=4)
    driver.add("a", PROMPT, max_tokens=4)
    driver.launch()
    driver.abort("a")
    pool = driver.scheduler.kv_cache.pool
    assert pool.num_active == 3

    driver.add("b", [1] * 9, max_tokens=1)
    assert driver.launch().decisions.head_reason == "kv_blocks", "no plan in flight names a reused block"
    assert driver.answer() == []
    assert (driver.num_wasted_rows, pool.num_active) == (1, 0)
    driver.run()
    assert driver.output_of("b") == expected_output([1] * 9, 1)


def test_the_next_step_is_planned_before_the_last_has_answered() -> None:
    driver = SchedulerDriver()
    driver.add("a", PROMPT, max_tokens=3)
    driver.launch()
    second = driver.launch()
    assert (second.plan.running_ids, second.plan.running_last_token_ids) == (["a"], [-1])
    third = driver.launch()
    assert third.plan.running_num_computed_tokens == [11]
    fourth = driver.launch()
    assert fourth.plan.num_rows == 0, "the third token will end it, whatever it is"
    assert fourth.decisions.left_out_reasons == ["step_in_progress"]
    for _ in range(3):
        driver.answer()
    assert driver.output_of("a") == expected_output(PROMPT, 3)
    driver.run()
    driver.check_idle()


def test_a_stop_found_while_the_next_step_runs_costs_one_wasted_row() -> None:
    driver = SchedulerDriver()
    first = next_token(PROMPT)
    driver.add("a", PROMPT, sampling=SamplingSpec(max_tokens=5, stop_token_ids=(first,)))
    driver.launch()
    driver.launch()
    driver.answer()
    assert driver.ended["a"].finish_reason == FinishReason.STOP
    assert driver.scheduler.kv_cache.pool.num_active == 3
    driver.answer()
    assert driver.num_wasted_rows == 1
    assert driver.output_of("a") == [first]
    driver.run()
    driver.check_idle()


def test_a_failed_row_ends_only_its_sequence() -> None:
    driver = SchedulerDriver()
    for name, prompt in (("a", [1, 2]), ("bad", [3, 4]), ("c", [5, 6])):
        driver.add(name, prompt, max_tokens=3)
    driver.executor.failing.add("bad")
    driver.run()
    assert driver.ended["bad"].error == ("invalid_logits", "The logits are not numbers.")
    assert driver.output_of("bad") == []
    assert driver.output_of("a") == expected_output([1, 2], 3)
    assert driver.output_of("c") == expected_output([5, 6], 3)
    driver.check_idle()


def test_a_row_without_an_answer_ends_with_an_error_instead_of_hanging() -> None:
    driver = SchedulerDriver()
    driver.add("a", [1, 2], max_tokens=3)
    driver.add("b", [1, 2], max_tokens=3)
    driver.executor.silent.add("b")
    driver.run()
    assert driver.ended["b"].error == ("internal_error", "The step gave no token for this sequence.")
    assert driver.output_of("a") == expected_output([1, 2], 3)
    driver.check_idle()


def test_paused_nothing_is_planned_and_everything_knows_why() -> None:
    driver = SchedulerDriver()
    driver.add("a", PROMPT, max_tokens=3)
    driver.step()
    driver.add("b", [1], max_tokens=1)
    driver.scheduler.pause = PauseState.ALL
    assert not driver.scheduler.has_work()
    step = driver.step()
    assert step.plan.num_rows == 0
    assert (step.decisions.left_out_ids, step.decisions.left_out_reasons) == (["a"], ["paused"])
    assert step.decisions.head_reason == "paused"

    driver.scheduler.pause = PauseState.NO_ADMISSION
    driver.run()
    assert list(driver.ended) == ["a"]
    driver.scheduler.pause = PauseState.NONE
    driver.run()
    assert list(driver.ended) == ["a", "b"]


def test_waiting_costs_nothing_however_many_wait() -> None:
    driver = SchedulerDriver(config=tiny_config(max_num_seqs=1))
    driver.add("a", PROMPT, max_tokens=3)
    others = [driver.add(f"w{index}", PROMPT, max_tokens=1) for index in range(300)]
    driver.step()
    driver.step()
    assert all(request.block_hashes == [] for request in others), "nobody looked at them"
    for request in others[:-1]:
        driver.abort(request.request_id)
    driver.run()
    assert list(driver.ended)[-1] == "w299"
    driver.check_idle()
