"""How many prompt tokens a step takes in which others decode."""

import pytest
from fake_executor import expected_output, tiny_config
from pipelined_executor import pipelined
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.scheduler_state import SchedulerLimits

PROMPT = list(range(100, 112))


def driver_with(num_decoding: int, **limits: float) -> SchedulerDriver:
    """A budget of 16 tokens, a share of 4, and so many sequences that decode."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_num_mixed_prefill_tokens": 4, **limits}
    driver = SchedulerDriver(num_blocks=64, config=tiny_config(**settings))
    for number in range(num_decoding):
        driver.add(f"decode-{number}", [10 + number], max_tokens=40)
    driver.step()
    return driver


def scheduled(driver: SchedulerDriver) -> dict[str, int]:
    plan = driver.step().plan
    tokens = dict(zip(plan.row_ids, plan.num_scheduled_tokens, strict=True))
    return {name: number for name, number in tokens.items() if not name.startswith("decode")}


def test_a_prompt_beside_decodes_comes_in_chunks_of_the_share() -> None:
    driver = driver_with(num_decoding=2)
    driver.add("a", PROMPT, max_tokens=2)

    assert [scheduled(driver) for _ in range(4)] == [{"a": 4}, {"a": 4}, {"a": 4}, {"a": 1}]
    assert driver.output_of("a") == expected_output(PROMPT, 2)


def test_a_prompt_alone_takes_the_whole_budget() -> None:
    driver = driver_with(num_decoding=0)
    driver.add("a", PROMPT, max_tokens=2)

    assert scheduled(driver) == {"a": 12}


def test_where_more_begin_than_decode_each_has_a_share_for_it() -> None:
    driver = driver_with(num_decoding=2)
    for name in "abcd":
        driver.add(name, PROMPT)

    assert scheduled(driver) == {"a": 8}


def test_who_has_no_place_among_the_running_does_not_count_as_beginning() -> None:
    driver = driver_with(num_decoding=2, max_num_seqs=3)
    for name in "abcd":
        driver.add(name, PROMPT)

    assert scheduled(driver) == {"a": 4}


def test_who_waits_for_a_share_is_told_so() -> None:
    driver = driver_with(num_decoding=3)
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    assert driver.step().decisions.head_reason == "prefill_share"

    decisions = driver.step().decisions
    assert (decisions.head_reason, decisions.left_out_ids) == ("prefill_share", [])


def test_a_prompt_that_was_begun_first_is_ended_first() -> None:
    driver = driver_with(num_decoding=3)
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)

    assert [scheduled(driver) for _ in range(4)] == [{"a": 4}, {"a": 4}, {"a": 4}, {"a": 1, "b": 4}]


def test_the_share_is_the_budget_again_when_nobody_decodes_any_more() -> None:
    driver = driver_with(num_decoding=1)
    driver.add("a", list(range(100, 130)))
    driver.step()
    driver.abort("decode-0")

    # The step before still gave somebody a token.
    assert [scheduled(driver) for _ in range(3)] == [{"a": 4}, {"a": 16}, {"a": 6}]


@pytest.mark.parametrize("changes", [{"max_num_mixed_prefill_tokens": None}, {"enable_chunked_prefill": False}])
def test_without_a_share_or_without_chunks_a_prompt_is_not_cut(changes: dict[str, bool | None]) -> None:
    driver = driver_with(num_decoding=2, max_num_batched_tokens=64, **changes)  # type: ignore[arg-type]
    driver.add("a", PROMPT)

    assert scheduled(driver) == {"a": 12}


def test_a_share_that_is_not_given_is_the_budget() -> None:
    limits = SchedulerLimits.from_config(tiny_config(max_num_batched_tokens=16))
    assert limits.max_num_mixed_prefill_tokens == 16


def test_in_a_pipeline_those_count_as_decoding_whom_other_steps_run() -> None:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_num_mixed_prefill_tokens": 4}
    driver = SchedulerDriver(num_blocks=64, config=pipelined(2, tiny_config(**settings)))
    for number in range(4):
        driver.add(f"decode-{number}", [10 + number], max_tokens=40)
    driver.launch()
    driver.launch()
    driver.add("a", PROMPT)
    driver.answer()

    plan = driver.launch().plan
    assert dict(zip(plan.row_ids, plan.num_scheduled_tokens, strict=True))["a"] == 4


def test_a_chunk_of_one_token_uses_up_the_share_as_well() -> None:
    driver = driver_with(num_decoding=4, max_num_mixed_prefill_tokens=1)
    for name in "ab":
        driver.add(name, PROMPT)
    assert [scheduled(driver) for _ in range(2)] == [{"a": 1}, {"a": 1}]


def test_a_share_may_grow_with_those_who_decode() -> None:
    driver = driver_with(num_decoding=3, mixed_prefill_tokens_a_decode=1.5)
    driver.add("a", PROMPT)
    assert [scheduled(driver) for _ in range(2)] == [{"a": 4}, {"a": 4}]

    driver = driver_with(num_decoding=5, mixed_prefill_tokens_a_decode=1.5)
    driver.add("a", PROMPT)
    assert [scheduled(driver) for _ in range(2)] == [{"a": 7}, {"a": 5}]
