"""The scheduler's steps: budgets, chunks, prefix hits, endings and pauses."""

import pytest
from fake_executor import expected_output, tiny_config
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.engine.pause_state import PauseState

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
