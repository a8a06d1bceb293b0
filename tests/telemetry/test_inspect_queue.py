"""The queue of a past step holds whoever the step left waiting, in order, with the reason of that moment."""

import pytest
from fact_stream import FactStream
from hypothesis import given, settings
from random_run import random_runs

from vllm_obs.telemetry.inspect_queue import MAX_QUEUE_SHOWN, queue_of
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.records import RequestEnded, RequestReleased, StepPlanned
from vllm_obs.telemetry.run_state import RunState

often = settings(max_examples=60, deadline=None, database=None)


def state_after(stream: FactStream) -> RunState:
    state = RunState()
    for source, record in stream.facts:
        state.apply(source, record)
    return state


@often
@given(random_runs())
def test_as_many_are_listed_as_the_core_says_that_it_left_waiting(stream: FactStream) -> None:
    state = state_after(stream)
    # One whose stop string was found may be preempted before the core hears of that.
    used_until = {
        each.request_id: min(each.ended_at, each.last_token_at or each.ended_at)
        for each in stream.records
        if isinstance(each, RequestEnded)
    }
    for planned in stream.records:
        if isinstance(planned, RequestReleased):
            used_until.pop(planned.request_id, None)
        if not isinstance(planned, StepPlanned):
            continue
        found = queue_of(state, "0", planned.step)
        num_done = sum(until <= planned.schedule_ended_at for until in used_until.values())
        num_listed = len(found["waiting"])
        assert planned.num_waiting - num_done <= num_listed <= found["num_waiting"] == planned.num_waiting
        assert [row["place"] for row in found["waiting"]] == list(range(num_listed))
        assert not {row["request_id"] for row in found["waiting"]} & set(planned.request_ids)
        assert all(row["seconds"] >= 0 for row in found["waiting"])
        if planned.head_reason and num_listed and not num_done:
            assert found["waiting"][0]["reason"] == planned.head_reason


def test_a_preempted_one_waits_again_since_it_was_preempted() -> None:
    stream = FactStream()
    stream.describe()
    for request_id in ("a", "b"):
        stream.submit(request_id)
    stream.step({"a": 10, "b": 10})
    stream.submit("c", num_prompt_tokens=7)
    stream.step({"a": 1}, preempted=["b"], head_reason="kv_blocks")
    stream.pass_time(2_000_000_000)
    stream.step({"a": 1}, head_reason="kv_blocks")
    stream.step({"a": 1, "b": 11, "c": 7})
    for request_id in ("a", "b", "c"):
        stream.finish(request_id)
    state = state_after(stream)
    waiting = queue_of(state, "0", 3)["waiting"]
    assert [(row["request_id"], row["state"], row["reason"], row["num_prompt_tokens"]) for row in waiting] == [
        ("b", "preempted", "kv_blocks", 10),
        ("c", "waiting", "head_of_line", 7),
    ]
    assert [round(row["seconds"], 1) for row in waiting] == [2.0, 2.0]
    assert queue_of(state, "0", 4)["waiting"] == []


def test_one_that_had_ended_already_is_counted_and_not_listed() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("a")
    stream.step({"a": 10})
    stream.end("a")
    stream.end_http("http-a")
    stream.step((), preempted=["a"])
    stream.release("a")
    found = queue_of(state_after(stream), "0", 2)
    assert (found["num_waiting"], found["waiting"]) == (1, [])


def test_of_a_long_queue_the_first_are_listed() -> None:
    stream = FactStream()
    stream.describe()
    num_waiting = MAX_QUEUE_SHOWN + 5
    for number in range(num_waiting):
        stream.submit(f"r-{number}")
    stream.step((), head_reason="kv_blocks")
    found = queue_of(state_after(stream), "0", 1)
    assert found["num_waiting"] == num_waiting
    assert [row["request_id"] for row in found["waiting"]] == [f"r-{number}" for number in range(MAX_QUEUE_SHOWN)]
    assert {row["reason"] for row in found["waiting"][1:]} == {"head_of_line"}


def test_a_step_that_is_not_kept_has_no_queue() -> None:
    stream = FactStream()
    stream.describe()
    with pytest.raises(InspectError, match="step 7 of engine 0 is not kept"):
        queue_of(state_after(stream), "0", 7)


def test_the_reasons_of_a_past_moment_are_told_though_nobody_has_caught_up() -> None:
    stream = FactStream()
    stream.describe()
    for request_id in ("a", "b", "c"):
        stream.submit(request_id)
    for reason in ("max_num_seqs", "kv_blocks") * 20:
        stream.step({"a": 10 if stream.num_steps == 0 else 1}, head_reason=reason)
    state = state_after(stream)
    reasons = [[row["reason"] for row in queue_of(state, "0", step)["waiting"]] for step in (39, 40)]
    assert reasons == [["max_num_seqs", "max_num_seqs"], ["kv_blocks", "head_of_line"]]
    assert len(state.sequences["c"].intervals) < 10
    assert queue_of(state, "0", 40)["waiting"][1]["seconds"] > 0.03
