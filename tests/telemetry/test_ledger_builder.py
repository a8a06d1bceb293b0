"""Each moment of a sequence is in exactly one stage, and each wait has its reason."""

from collections.abc import Iterable
from itertools import pairwise

from fact_stream import ENGINE, FactStream
from recording_view import RecordingView

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import Record, StepAnswered, StepPlanned
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.view import Source, SourceGone


def applied(facts: Iterable[tuple[Source, Record]]) -> tuple[RunState, RecordingView]:
    state, view = RunState(), RecordingView()
    state.add_view(view)
    for source, record in facts:
        state.apply(source, record)
    return state, view


def ledger_of(stream: FactStream, request_id: str = "r-0") -> SequenceLedger:
    """The closed ledger of a sequence, which must be a partition, with every law kept."""
    state, _ = applied(stream.facts)
    ledger = state.ended.get(request_id)
    assert ledger is not None
    assert {law: num for law, num in state.invariants.counts().items() if num} == {}
    assert all(before.ended_at == after.begun_at for before, after in pairwise(ledger.intervals))
    assert all(interval.num_ns > 0 for interval in ledger.intervals)
    assert sum(ledger.stage_ns().values()) == ledger.latency_ns
    return ledger


def spent(ledger: SequenceLedger) -> list[tuple[str, int, str]]:
    return [(interval.stage, interval.num_ns, interval.reason) for interval in ledger.intervals]


def planned_at(stream: FactStream, step: int) -> int:
    return next(r.schedule_ended_at for r in stream.records if isinstance(r, StepPlanned) and r.step == step)


def test_a_request_goes_through_every_stage_in_order() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step({"r-0": 4})
    stream.step({"r-0": 6})
    stream.step(["r-0"])
    stream.finish("r-0", "length")
    assert spent(ledger_of(stream)) == [
        ("receive", 10_000, ""),
        ("render", 10_000, ""),
        ("tokenize", 10_000, ""),
        ("submit", 40_000, ""),
        ("queue", 20_000, "step_in_progress"),
        ("prefill", 2_050_000, ""),
        ("decode", 1_085_000, ""),
        ("return", 60_000, ""),
        ("detokenize", 30_000, ""),
        ("deliver", 25_000, ""),
    ]


def test_a_ledger_tells_what_a_sequence_used() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("first", num_prompt_tokens=8)
    stream.step(["first"])
    stream.finish("first")
    stream.submit("r-0", num_prompt_tokens=10)
    stream.submit("other", num_prompt_tokens=2)
    stream.step({"r-0": 4, "other": 2}, cached={"r-0": 4})
    stream.step(["r-0", "other"])
    stream.step(["r-0"])
    stream.finish("r-0")
    ledger = ledger_of(stream)
    assert ledger.steps == [(2, 4, 4), (3, 2, 8), (4, 1, 10)]
    assert (ledger.first_step, ledger.last_step, ledger.num_steps) == (2, 4, 3)
    assert (ledger.num_cached_tokens, ledger.num_prefill_computed_tokens) == (4, 6)
    assert (ledger.num_output_tokens, ledger.peak_company, ledger.mean_company) == (2, 2, 5 / 3)


def test_who_waits_first_has_the_plans_reason_and_those_behind_wait_for_it() -> None:
    stream = FactStream()
    stream.describe()
    for request_id in ("r-0", "r-1", "r-2"):
        stream.submit(request_id)
    stream.step(["r-0"], head_reason="kv_blocks")
    stream.step(["r-0"], head_reason="max_num_seqs")
    stream.step(["r-0", "r-1"], head_reason="token_budget")
    stream.step(["r-2"])
    stream.finish("r-2")
    stream.finish("r-1")
    first, second, third = [planned_at(stream, step) for step in (1, 2, 3)]
    waits = [interval for interval in ledger_of(stream, "r-2").intervals if interval.stage == "queue"]
    assert [(wait.reason, wait.begun_at) for wait in waits][1:] == [
        ("head_of_line", first),
        ("max_num_seqs", second),
        ("token_budget", third),
    ]
    assert ledger_of(stream, "r-1").waits == {
        "step_in_progress": first - ledger_of(stream, "r-1").taken_at,
        "kv_blocks": second - first,
        "max_num_seqs": third - second,
    }


def test_a_running_sequence_that_is_left_out_is_stalled_from_the_step_before() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    stream.submit("r-1")
    stream.step(["r-0", "r-1"])
    sampled_at = stream.sequences["r-0"].last_token_at
    stream.step(["r-1"], left_out={"r-0": "token_budget"})
    stream.step(["r-1"], left_out={"r-0": "kv_blocks"})
    stream.step(["r-0", "r-1"])
    stream.finish("r-0")
    stalls = [interval for interval in ledger_of(stream).intervals if interval.stage == "stalled"]
    assert stalls == [
        ("stalled", sampled_at, planned_at(stream, 3), "token_budget"),
        ("stalled", planned_at(stream, 3), planned_at(stream, 4), "kv_blocks"),
    ]


def test_preemption_is_a_wait_and_then_recomputing_until_the_next_token() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", num_prompt_tokens=10)
    stream.submit("r-1")
    stream.step(["r-0", "r-1"])
    stream.step(["r-1"], preempted=["r-0"], head_reason="kv_blocks")
    stream.step({"r-0": 5, "r-1": 1}, cached={"r-0": 4})
    stream.step(["r-0"])
    sampled_at = stream.sequences["r-0"].last_token_at
    stream.step(["r-0"])
    stream.finish("r-0")
    ledger = ledger_of(stream)
    assert [tuple(interval) for interval in ledger.intervals if interval.stage in ("preempted", "recompute")] == [
        ("preempted", planned_at(stream, 2), planned_at(stream, 3), "kv_blocks"),
        ("recompute", planned_at(stream, 3), sampled_at, ""),
    ]
    assert (ledger.num_preemptions, ledger.num_recomputed_tokens, ledger.num_prefill_computed_tokens) == (1, 6, 10)


def test_prompt_tokens_that_the_cache_had_after_a_preemption_are_told_apart() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", num_prompt_tokens=12)
    stream.submit("r-1", num_prompt_tokens=12)
    stream.step({"r-0": 4, "r-1": 12})
    stream.step(["r-1"], preempted=["r-0"])
    stream.step(["r-0", "r-1"], cached={"r-0": 8})
    stream.finish("r-0")
    ledger = ledger_of(stream)
    assert (ledger.num_cached_tokens, ledger.num_resumed_cached_tokens) == (0, 4)
    assert (ledger.num_prefill_computed_tokens, ledger.num_recomputed_tokens) == (8, 0)


def test_an_abort_ends_the_stage_that_the_sequence_is_in() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("waiting")
    stream.submit("running")
    stream.step(["running"])
    for request_id in ("waiting", "running"):
        stream.abort(request_id)
    assert [interval[0] for interval in ledger_of(stream, "waiting").intervals][-2:] == ["queue", "deliver"]
    running = ledger_of(stream, "running")
    assert [interval[0] for interval in running.intervals][-3:] == ["prefill", "decode", "deliver"]
    assert running.ended is not None
    assert running.intervals[-2].ended_at == running.ended.ended_at


def test_what_the_core_did_after_the_ending_does_not_count() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    stream.end("r-0", "abort")
    stream.step(["r-0"])
    stream.step(["r-0"])
    stream.end_http("http-r-0", 499)
    stream.release("r-0", "abort")
    ledger = ledger_of(stream)
    assert ledger.ended is not None
    assert ledger.intervals[-1].begun_at == ledger.ended.ended_at
    assert ledger.num_output_tokens == 3


def test_a_stop_string_returns_from_the_token_that_completed_it() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    last_used_at = stream.sequences["r-0"].last_token_at
    taken_at = stream.sequences["r-0"].outputs_taken_at
    stream.step(["r-0"], is_taken=False)
    stream.end("r-0", "stop", last_token_at=last_used_at, num_output_tokens=1)
    stream.release("r-0", "stop")
    stream.end_http("http-r-0")
    returned = [interval for interval in ledger_of(stream).intervals if interval.stage == "return"]
    assert returned == [("return", last_used_at, taken_at, "")]


def test_a_request_that_samples_nothing_it_keeps_still_returns() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit(max_tokens=0)
    stream.step(["r-0"])
    stream.sequences["r-0"].num_output_tokens = 0
    stream.finish("r-0", "length")
    facts = [
        (source, record._replace(num_new_tokens=[0]) if hasattr(record, "num_new_tokens") else record)
        for source, record in stream.facts
    ]
    facts = [(source, r._replace(last_token_at=0) if hasattr(r, "last_token_at") else r) for source, r in facts]
    state, view = applied(facts)
    ledger = state.ended.get("r-0")
    assert ledger is not None
    assert [interval.stage for interval in ledger.intervals][-4:] == ["prefill", "return", "detokenize", "deliver"]
    assert view.gaps == {}


def test_each_token_is_told_with_the_time_since_the_one_before() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    stream.pass_time(5_000)
    stream.step(["r-0"])
    stream.step(["r-0"])
    _, view = applied(stream.facts)
    assert view.gaps == {"r-0": [None, 1_090_000, 1_085_000]}


def test_a_pause_stalls_whoever_ran_and_gives_its_reason_to_whoever_waits() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    stream.submit("r-1")
    stream.step(["r-0"], head_reason="max_num_seqs")
    stream.change_state("paused")
    paused_at = stream.now
    stream.pass_time(1_000_000)
    stream.change_state("awake")
    stream.step(["r-0", "r-1"])
    stream.finish("r-0")
    stream.finish("r-1")
    resumed_at = planned_at(stream, 2)
    assert ("stalled", paused_at, resumed_at, "paused") in ledger_of(stream, "r-0").intervals
    assert ("queue", paused_at, resumed_at, "paused") in ledger_of(stream, "r-1").intervals


def test_the_priority_policy_is_seen_from_who_is_admitted_first() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("late", priority=5)
    stream.submit("soon", priority=1)
    stream.submit("first", priority=0)
    stream.step(["first"], head_reason="max_num_seqs")
    state, _ = applied(stream.facts)
    line = state.engines["0"].builder.roster.line
    assert [ledger.request_id for ledger in line.ledgers()] == ["soon", "late"]


def test_sequences_of_a_dead_engine_keep_their_stage_until_they_are_ended() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    state, _ = applied(stream.facts)
    state.apply(ENGINE, SourceGone())
    assert state.engines == {}
    assert state.past_engines[0].num_running == 0
    assert state.sequences["r-0"].state == "running"
    stream.pass_time(1_000_000)
    for source, record in [*stream.end("r-0", "error"), *stream.end_http("http-r-0", 500)]:
        state.apply(source, record)
    ledger = state.ended.get("r-0")
    assert ledger is not None
    assert [interval.stage for interval in ledger.intervals][-2:] == ["decode", "deliver"]
    assert state.invariants.num_broken == 0


def test_an_engine_that_comes_again_begins_with_nothing_of_the_old_one() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    again = FactStream(now=stream.now, engine=ENGINE._replace(pid=201, generation=2001))
    state, _ = applied(stream.facts + again.describe())
    assert (state.engines["0"].source.pid, state.engines["0"].num_running) == (201, 0)
    late = stream.step(["r-0"])
    for source, record in late:
        state.apply(source, record)
    assert (len(state.engines["0"].steps), state.invariants.num_broken) == (0, 0)


def sent_during_a_step() -> FactStream:
    """`r-1` is sent 100 µs after step 1 began, which computes the 470 prompt tokens of `r-0` for 50 ms."""
    stream = FactStream(num_blocks=256)
    stream.describe()
    stream.submit("r-0", num_prompt_tokens=470)
    begun_at = stream.now
    stream.step(["r-0"], parts={"forward": 50_000_000})
    moments = dict.fromkeys(("received_at", "parsed_at", "rendered_at"), begun_at + 90_000)
    stream.submit(
        "r-1", is_taken=False, tokenized_at=begun_at + 95_000, submitted_at=begun_at + 100_000, **moments
    )
    stream.take("r-1")
    stream.step(["r-0", "r-1"])
    stream.finish("r-0")
    stream.finish("r-1")
    return stream


def test_the_way_to_a_core_that_is_inside_a_step_is_a_wait_for_it() -> None:
    stream = sent_during_a_step()
    ledger = ledger_of(stream, "r-1")
    answered = next(record for record in stream.records if isinstance(record, StepAnswered))
    sent_at = ledger.submitted.submitted_at
    way = [interval for interval in ledger.intervals if interval.stage == "submit"]
    assert way == [
        Interval("submit", ledger.submitted.tokenized_at, sent_at, ""),
        Interval("submit", sent_at, answered.updated_at, "step_in_progress"),
        Interval("submit", answered.updated_at, ledger.taken_at, ""),
    ]
    queued = planned_at(stream, 2) - ledger.taken_at
    assert ledger.waits == {"step_in_progress": answered.updated_at - sent_at + queued}


def test_the_wait_in_the_inbox_is_the_same_whoever_tells_first() -> None:
    stream = sent_during_a_step()
    expected = ledger_of(stream, "r-1").intervals
    for first, second in ((stream.engine, stream.api), (stream.api, stream.engine)):
        state, _ = applied([*stream.of(first), *stream.of(second)])
        ledger = state.ended.get("r-1")
        assert ledger is not None
        assert ledger.intervals == expected


def test_one_that_is_aborted_during_the_step_waited_until_then() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    begun_at = stream.now
    stream.step(["r-0"])
    early = dict.fromkeys(("received_at", "parsed_at", "rendered_at", "tokenized_at"), begun_at + 1000)
    stream.submit("r-1", is_taken=False, submitted_at=begun_at + 1000, **early)
    stream.take("r-1")
    stream.end("r-1", "abort", ended_at=begun_at + 5000)
    stream.end_http("http-r-1", 499)
    stream.release("r-1", "abort")
    ledger = ledger_of(stream, "r-1")
    assert spent(ledger)[0] == ("submit", 4000, "step_in_progress")
    assert ledger.waits == {"step_in_progress": 4000}
