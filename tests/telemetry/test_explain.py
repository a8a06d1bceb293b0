"""A sequence is explained in exact, plain sentences: its time, its waits, what they cost and how it ended."""

from dataclasses import replace
from itertools import pairwise

import pytest

from vllm_obs.telemetry.explain import Ahead, explain
from vllm_obs.telemetry.explain_words import duration
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted, StepAnswered, StepPlanned
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.step_history import StepFacts, StepHistory

MS = 1_000_000
SUBMITTED = RequestSubmitted(
    request_id="r-0-0",
    client_index=0,
    http_id="r",
    external_id="",
    sequence_index=0,
    num_sequences=1,
    num_prompts=1,
    operation="chat",
    is_streamed=False,
    model="m",
    trace_parent="",
    received_at=0,
    parsed_at=0,
    rendered_at=0,
    tokenized_at=0,
    submitted_at=0,
    num_prompt_tokens=100,
    max_tokens=64,
    priority=0,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
)
ENDED = RequestEnded("r-0-0", 0, "length", "", 100, 64, 0, 0, 0, 0, 0)

Stage = tuple[str, str, float]


def intervals_of(*stages: Stage) -> list[Interval]:
    """Intervals that touch, of (stage, reason, milliseconds)."""
    moments = [0]
    for _, _, length in stages:
        moments.append(moments[-1] + round(length * MS))
    pairs = zip(stages, pairwise(moments), strict=True)
    return [Interval(stage, begun_at, ended_at, reason) for (stage, reason, _), (begun_at, ended_at) in pairs]


def ran(**changes: object) -> SequenceLedger:
    """A ledger of a sequence that ran in steps 10 to 73, alone, and ended at its limit."""
    ledger = SequenceLedger(
        submitted=SUBMITTED,
        engine="0",
        num_prefill_computed_tokens=100,
        first_step=10,
        last_step=73,
        num_steps=64,
        num_output_tokens=64,
        peak_company=1,
        sum_company=64,
        ended=ENDED,
        is_closed=True,
    )
    return replace(ledger, **changes)  # type: ignore[arg-type]


ALONE = "It ran alone, in 64 steps (10 to 73)."
UNCACHED = "None of its 100 prompt tokens came from the prefix cache."
AT_LIMIT = "It ended at its token limit after 64 output tokens."
WHOLE = [("queue", "kv_blocks", 947.1), ("prefill", "", 362.9), ("decode", "", 1000)]


def test_a_wait_for_blocks_is_told_with_who_was_ahead() -> None:
    assert explain(ran(), intervals_of(("queue", "kv_blocks", 947.1), ("decode", "", 1362.9)), Ahead(9, 3)) == [
        "59 % of 2.31 s was decoding 64 output tokens; 41 % (947 ms) waiting for KV blocks behind 12 requests.",
        UNCACHED,
        ALONE,
        AT_LIMIT,
    ]


def test_the_largest_part_leads() -> None:
    told = explain(ran(), intervals_of(("queue", "kv_blocks", 947.1), ("prefill", "", 362.9)), Ahead(0, 1))
    assert told[0] == (
        "72 % of 1.31 s was waiting for KV blocks behind 1 request; 28 % (363 ms) computing 100 prompt tokens."
    )


def test_parts_under_a_tenth_are_left_out_unless_they_lead() -> None:
    told = explain(ran(), intervals_of(("tokenize", "", 5), ("queue", "token_budget", 5), ("decode", "", 90)))
    assert told[0] == "90 % of 100 ms was decoding 64 output tokens."


def test_at_most_three_parts_are_told() -> None:
    stages = [("queue", "priority", 21), ("prefill", "", 22), ("decode", "", 23), ("deliver", "", 24)]
    assert explain(ran(), intervals_of(*stages))[0] == (
        "27 % of 90.0 ms was delivering to the client; 26 % (23.0 ms) decoding 64 output tokens; "
        "24 % (22.0 ms) computing 100 prompt tokens."
    )


def test_waits_of_one_reason_in_one_stage_are_added_up() -> None:
    stages = [("queue", "max_num_seqs", 30), ("queue", "head_of_line", 10), ("queue", "max_num_seqs", 30)]
    assert explain(ran(), intervals_of(*stages), Ahead(2, 0))[0] == (
        "86 % of 70.0 ms was waiting for a place among the running behind 2 requests; "
        "14 % (10.0 ms) waiting in line behind 2 requests."
    )


def test_a_pause_has_nobody_ahead() -> None:
    told = explain(ran(), intervals_of(("queue", "paused", 3000)), Ahead(2, 5))
    assert told[0] == "100 % of 3.00 s was waiting while the engine was paused."


def test_a_stall_is_not_blamed_on_the_queue() -> None:
    told = explain(ran(), intervals_of(("stalled", "kv_blocks", 80), ("decode", "", 20)), Ahead(3, 3))
    assert told[0] == "80 % of 100 ms was waiting for KV blocks; 20 % (20.0 ms) decoding 64 output tokens."


def test_preemptions_are_told_with_what_they_cost() -> None:
    stages = [("decode", "", 100), ("preempted", "kv_blocks", 250), ("recompute", "", 150)]
    told = explain(ran(num_preemptions=2, num_recomputed_tokens=331), intervals_of(*stages))
    assert told[:2] == [
        "50 % of 500 ms was waiting for KV blocks; "
        "30 % (150 ms) computing again what a preemption had thrown away; "
        "20 % (100 ms) decoding 64 output tokens.",
        "It was preempted twice and had 331 tokens computed again, which cost 400 ms.",
    ]


@pytest.mark.parametrize(
    ("num_preemptions", "num_tokens", "words"),
    [(1, 1, "once and had 1 token"), (3, 0, "3 times and had 0 tokens")],
)
def test_numbers_agree_with_their_nouns(num_preemptions: int, num_tokens: int, words: str) -> None:
    ledger = ran(num_preemptions=num_preemptions, num_recomputed_tokens=num_tokens)
    assert f"It was preempted {words} computed again" in explain(ledger, intervals_of(*WHOLE))[1]


def test_cached_prompt_tokens_are_told() -> None:
    told = explain(ran(num_cached_tokens=64, num_prefill_computed_tokens=36), intervals_of(("prefill", "", 10)))
    assert told[:2] == [
        "100 % of 10.0 ms was computing 36 prompt tokens.",
        "64 of its 100 prompt tokens came from the prefix cache.",
    ]


def test_company_is_told_as_mean_and_peak() -> None:
    told = explain(ran(sum_company=64 * 12 + 13, peak_company=23), intervals_of(*WHOLE))
    assert "It ran in 64 steps (10 to 73), in batches of 12.2 on average and 23 at most." in told


def test_one_that_lives_is_told_so_far() -> None:
    ledger = SequenceLedger(submitted=SUBMITTED, engine="0", stage="queue", reason="kv_blocks", since=10 * MS)
    told = explain(ledger, intervals_of(("submit", "", 10), ("queue", "kv_blocks", 3190)), Ahead(12, 0))
    assert told == ["100 % of the 3.20 s so far was waiting for KV blocks behind 12 requests."]


def test_one_that_was_just_received_has_no_time_yet() -> None:
    assert explain(SequenceLedger(submitted=SUBMITTED), []) == ["No time has passed in it yet."]


@pytest.mark.parametrize(
    ("reason", "error", "num_tokens", "sentence"),
    [
        ("abort", "", 5, "It was aborted after 5 output tokens."),
        ("stop", "", 1, "It ended by itself after 1 output token."),
        ("repetition", "", 9, "It was ended for repeating itself after 9 output tokens."),
        ("error", "engine_dead", 0, "It failed after 0 output tokens: engine_dead."),
        ("timeout", "", 0, "It ended (timeout) after 0 output tokens."),
    ],
)
def test_every_ending_has_its_sentence(reason: str, error: str, num_tokens: int, sentence: str) -> None:
    ended = ENDED._replace(finish_reason=reason, error=error, num_output_tokens=num_tokens)
    assert explain(ran(ended=ended), intervals_of(*WHOLE))[-1] == sentence


def test_one_that_never_ran_says_nothing_of_steps() -> None:
    ledger = ran(num_steps=0, ended=ENDED._replace(finish_reason="abort", num_output_tokens=0))
    assert explain(ledger, intervals_of(("queue", "grammar", 50))) == [
        "100 % of 50.0 ms was waiting for its grammar.",
        "It was aborted after 0 output tokens.",
    ]


def test_a_reason_of_a_newer_writer_is_shown_as_it_is() -> None:
    told = explain(ran(), intervals_of(("queue", "moon_phase", 30), ("stalled", "", 20)), Ahead(4, 4))
    assert told[0] == "60 % of 50.0 ms was waiting (moon_phase); 40 % (20.0 ms) waiting (reason unknown)."


def test_loss_is_admitted() -> None:
    told = explain(ran(is_partial=True), intervals_of(*WHOLE))
    assert told[-1] == "Records about it were lost, so these numbers are what is left of them."


@pytest.mark.parametrize(
    ("length_ns", "words"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (87_000, "87.0 µs"),
        (1_234_567, "1.23 ms"),
        (12_345_678, "12.3 ms"),
        (940_000_000, "940 ms"),
        (2_310_000_000, "2.31 s"),
        (61_000_000_000, "61.0 s"),
        (3_600_000_000_000, "3600 s"),
    ],
)
def test_times_have_three_digits(length_ns: int, words: str) -> None:
    assert duration(length_ns) == words


def history_of(*steps: tuple[int, float, float | None, dict[str, int]]) -> StepHistory:
    """Steps of (number, begin, end in ms, rows); one without an end has not answered."""
    history = StepHistory()
    for number, begun_ms, ended_ms, rows in steps:
        begun_at, none = round(begun_ms * MS), [0] * len(rows)
        planned = StepPlanned(
            number, begun_at, begun_at, list(rows), list(rows.values()), none, none, [], [], [], [], [], [], "",
            len(rows), 0, 0, 0, 0,
        )  # fmt: skip
        facts = StepFacts("0", planned)
        if ended_ms is not None:
            ended_at = round(ended_ms * MS)
            facts.answered = StepAnswered(number, ended_at, ended_at, ended_at, list(rows), [1] * len(rows), 0)
        history.add(facts)
    return history


def test_a_wait_in_the_inbox_names_the_step_and_whose_prompt_it_computed() -> None:
    intervals = intervals_of(("submit", "", 5), ("submit", "step_in_progress", 695), ("decode", "", 77))
    steps = history_of((12, 2, 700, {"other": 470}), (13, 701, 777, {"r-0-0": 1}))
    assert explain(ran(), intervals, Ahead(1, 0), steps)[:2] == [
        "89 % of 777 ms was waiting in the engine's inbox while step 12 computed 470 tokens, "
        "470 of them of request other's prompt.",
        UNCACHED,
    ]


def test_a_wait_in_the_inbox_may_be_for_several_steps_or_for_unknown_ones() -> None:
    intervals = intervals_of(("submit", "step_in_progress", 90), ("decode", "", 10))
    steps = history_of((12, 0, 40, {"a": 30, "b": 1}), (13, 40, 90, {"a": 1, "b": 1}))
    assert explain(ran(), intervals, None, steps)[0] == (
        "90 % of 100 ms was waiting in the engine's inbox while steps 12 to 13 computed 33 tokens, "
        "30 of them of request a's prompt; 10 % (10.0 ms) decoding 64 output tokens."
    )
    assert explain(ran(), intervals)[0] == (
        "90 % of 100 ms was waiting in the engine's inbox for the step in progress; "
        "10 % (10.0 ms) decoding 64 output tokens."
    )


def test_a_step_that_took_most_of_the_time_is_told() -> None:
    steps = history_of(
        (11, 0, 500, {"r-0-0": 1}), (12, 500, 13_500, {"r-0-0": 1, "b": 200}), (13, 13_500, 14_100, {})
    )
    assert explain(ran(), intervals_of(("decode", "", 14_100)), None, steps)[:2] == [
        "100 % of 14.1 s was decoding 64 output tokens.",
        "Step 12 alone took 13.0 s of it: it computed 201 tokens of 2 requests, "
        "200 of them of request b's prompt.",
    ]


def test_steps_of_equal_length_are_not_told() -> None:
    steps = history_of(*((number, number * 10, number * 10 + 10, {"r-0-0": 1}) for number in range(10)))
    assert explain(ran(), intervals_of(("decode", "", 100)), None, steps)[1] == UNCACHED


def living() -> SequenceLedger:
    return replace(ran(), ended=None, is_closed=False, stage="decode", since=0)


def test_a_step_that_does_not_answer_is_told_of_one_that_lives() -> None:
    steps = history_of((11, 0, 1000, {"r-0-0": 1}), (12, 1000, None, {"r-0-0": 1, "b": 1}))
    assert explain(living(), intervals_of(("decode", "", 14_100)), None, steps)[1] == (
        "Step 12 has not answered for 13.1 s; it computes 2 tokens of 2 requests."
    )
    assert explain(ran(), intervals_of(("decode", "", 14_100)), None, steps)[1] == (
        "Step 12, which took 13.1 s of it, did not answer: it had 2 tokens of 2 requests."
    )


def test_an_engine_that_begins_no_step_is_told_unless_it_is_paused() -> None:
    steps = history_of((11, 0, 1000, {"r-0-0": 1}))
    intervals = intervals_of(("decode", "", 14_100))
    assert explain(living(), intervals, None, steps)[1] == "The engine has begun no step for 13.1 s."
    paused = replace(living(), stage="stalled", reason="paused")
    assert explain(paused, intervals, None, steps)[1] == UNCACHED


def test_one_whose_api_server_died_says_so_instead_of_an_ending() -> None:
    told = explain(ran(ended=None, is_abandoned=True, num_output_tokens=9), intervals_of(*WHOLE))
    assert told[-1] == (
        "Its API server died before it had ended, after 9 output tokens; what is told is until the last step."
    )
