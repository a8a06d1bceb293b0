"""Plans that have not answered: blocks they hold, rows they waste, rows that fail."""

import pytest
from fake_executor import expected_output, next_token, tiny_config
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.messages import FinishReason, SamplingSpec

PROMPT = list(range(100, 110))


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


def test_a_sequence_whose_token_is_being_made_has_it_before_it_is_preempted() -> None:
    driver = SchedulerDriver(num_blocks=4)
    first, second = PROMPT[:8], PROMPT[1:8]
    driver.add("a", first, max_tokens=3)
    driver.add("b", second, max_tokens=3)
    driver.launch()
    ahead = driver.launch()
    assert (ahead.plan.num_rows, ahead.decisions.preempted_ids) == (0, [])
    assert ahead.decisions.left_out_ids == ["b", "a"]
    assert ahead.decisions.left_out_reasons == ["kv_blocks", "kv_blocks"]
    assert driver.running_ids == ["a", "b"]
    assert driver.answer() == ["a", "b"]
    third = driver.launch()
    assert (third.plan.running_ids, third.decisions.preempted_ids) == (["a"], ["b"])
    assert driver.output_of("b") == expected_output(second, 1)
    driver.answer()
    driver.run()
    assert (driver.output_of("a"), driver.output_of("b")) == (
        expected_output(first, 3),
        expected_output(second, 3),
    )
    assert driver.num_wasted_rows == 0
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


def test_what_a_failed_row_computed_is_not_found_by_others() -> None:
    driver = SchedulerDriver()
    driver.add("bad", PROMPT, max_tokens=3)
    driver.step()
    assert driver.hashed_blocks() == 2
    driver.executor.failing.add("bad")
    driver.run()
    assert driver.ended["bad"].error is not None
    assert driver.hashed_blocks() == 0
    driver.add("next", PROMPT, max_tokens=1)
    driver.run()
    assert driver.ended["next"].num_cached_tokens == 0
    driver.check_idle()


def test_what_a_row_without_numbers_computed_is_not_found_even_if_it_was_aborted_meanwhile() -> None:
    driver = SchedulerDriver()
    driver.add("bad", PROMPT, max_tokens=3)
    driver.step()
    driver.executor.failing.add("bad")
    driver.launch()
    driver.abort("bad")
    assert driver.hashed_blocks() == 2, "the step has not told yet"
    driver.answer()
    assert driver.ended["bad"].error is None
    assert driver.hashed_blocks() == 0
    driver.check_idle()


def test_a_row_that_fails_for_another_reason_too_leaves_no_blocks_to_find() -> None:
    driver = SchedulerDriver()
    driver.add("bad", PROMPT, max_tokens=3)
    driver.step()
    driver.executor.failing.add("bad")
    driver.launch()
    driver.answer_with(failed=[("bad", "internal_error", "It has no mask.")])
    assert driver.ended["bad"].error == ("internal_error", "It has no mask.")
    assert driver.hashed_blocks() == 0


def test_who_runs_on_blocks_of_a_row_without_numbers_is_computed_anew_and_only_that_row_fails() -> None:
    driver = SchedulerDriver()
    driver.add("bad", PROMPT, max_tokens=9)
    driver.step()
    sharer = driver.add("sharer", [*PROMPT, 1], max_tokens=4)
    driver.step()
    assert sharer.num_cached_tokens == 8
    driver.executor.failing |= {"bad", "sharer"}
    driver.step()
    assert list(driver.ended) == ["bad"]
    assert [each.request_id for each in driver.scheduler.suspects] == ["sharer"]

    driver.executor.failing.clear()
    back = driver.step()
    assert (back.decisions.preempted_ids, back.plan.released_ids) == (["sharer"], ["bad", "sharer"])
    driver.add("other", PROMPT, max_tokens=1)
    driver.run()
    assert driver.output_of("sharer") == expected_output([*PROMPT, 1], 4)
    assert (sharer.error, sharer.num_found_tokens) == (None, 0)
    driver.check_idle()


def test_who_has_no_numbers_on_blocks_of_its_own_either_fails_the_second_time() -> None:
    driver = SchedulerDriver()
    driver.add("good", PROMPT, max_tokens=1)
    driver.run()
    driver.executor.failing.add("bad")
    bad = driver.add("bad", [*PROMPT, 1], max_tokens=4)
    driver.run()
    assert (bad.num_preemptions, bad.error) == (1, ("invalid_logits", "The logits are not numbers."))
    driver.check_idle()


@pytest.mark.parametrize("num_blocks", range(4, 10))
def test_blocks_of_a_suspect_are_kept_while_the_step_begun_ahead_runs_it_for_nothing(num_blocks: int) -> None:
    """The driver looks at each plan's new blocks."""
    driver = SchedulerDriver(num_blocks)
    driver.add("good", PROMPT, max_tokens=1)
    driver.run()
    driver.add("other", [1, 2, 3], max_tokens=6)
    bad = driver.add("bad", [*PROMPT, 1], max_tokens=4)
    driver.launch()
    driver.launch()
    driver.answer_with(failed=[("bad", "invalid_logits", "The logits are not numbers.")])
    if [each.request_id for each in driver.scheduler.suspects] == ["bad"]:
        assert driver.launch().decisions.preempted_ids == ["bad"]
    while driver.scheduler.num_in_flight:
        driver.answer()
    driver.run()
    assert driver.output_of("other") == expected_output([1, 2, 3], 6)
    assert (bad.error, driver.output_of("bad")) == (None, expected_output([*PROMPT, 1], 4))
    driver.check_idle()


def test_a_suspect_that_is_aborted_is_not_sent_back() -> None:
    driver = SchedulerDriver()
    driver.add("good", PROMPT, max_tokens=1)
    driver.run()
    driver.executor.failing.add("bad")
    driver.add("bad", [*PROMPT, 1], max_tokens=4)
    driver.step()
    driver.abort("bad")
    assert [step.decisions.preempted_ids for step in driver.run()] == [[]]
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


def test_a_prompt_as_long_as_the_context_goes_on_beside_steps_under_way() -> None:
    """It awaits no token, so there is no last one to wait for."""
    config = tiny_config(max_model_len=24, max_num_batched_tokens=8, async_scheduling=True)
    driver = SchedulerDriver(num_blocks=32, config=config)
    driver.add("decoding", [10], max_tokens=20)
    driver.launch()
    driver.add("scored", list(range(100, 124)), sampling=SamplingSpec(max_tokens=0, pooling="mean"))

    for _ in range(6):
        driver.launch()
        driver.answer()
    assert "scored" in driver.ended
