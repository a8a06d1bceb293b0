"""The waiting line knows its head, and gives everybody behind it the reason that holds for them."""

from collections import Counter

import pytest
from fact_stream import FactStream
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import RequestSubmitted
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.wait_reasons import WAIT_REASONS, known_reason, reason_behind
from vllm_obs.telemetry.waiting_line import FIRST_LOOK, WaitingLine


def waiting(request_id: str, at: int = 0) -> SequenceLedger:
    (_, submitted), *_ = FactStream().submit(request_id)
    assert isinstance(submitted, RequestSubmitted)
    return SequenceLedger(submitted, stage="queue", reason=FIRST_LOOK, since=at)


def line_of(*ledgers: SequenceLedger) -> WaitingLine:
    line = WaitingLine()
    for number, ledger in enumerate(ledgers):
        line.join(ledger, (0, number))
    return line


def test_a_reason_outside_the_closed_set_is_another() -> None:
    assert [known_reason(reason) for reason in ("kv_blocks", "a newer one")] == ["kv_blocks", "other"]


@pytest.mark.parametrize("reason", WAIT_REASONS)
def test_a_limit_for_all_is_everybodys_reason_and_a_heads_own_lack_is_not(reason: str) -> None:
    is_for_all = reason in ("max_num_seqs", "token_budget", "prefill_share", "paused")
    assert reason_behind(reason) == (reason if is_for_all else "head_of_line")


def test_the_head_leaves_and_the_next_takes_its_place() -> None:
    first, second = waiting("a"), waiting("b")
    line = line_of(first, second)
    line.planned("kv_blocks", 10)
    assert (line.head, first.reason, second.reason) == (first, "kv_blocks", "head_of_line")
    line.leave("a")
    line.planned("kv_blocks", 20)
    assert (line.head, second.reason, second.since, len(line)) == (second, "kv_blocks", 20, 1)
    assert second.intervals == [Interval("queue", 0, 10, FIRST_LOOK), Interval("queue", 10, 20, "head_of_line")]


def test_the_longest_wait_goes_on_through_every_reason() -> None:
    line = line_of(waiting("a", 5), waiting("b", 12))
    for at, reason in ((10, "kv_blocks"), (20, "max_num_seqs"), (30, "kv_blocks")):
        line.planned(reason, at)
    assert line.longest_wait_ns(40) == 35
    line.leave("a")
    assert line.longest_wait_ns(40) == 28
    line.leave("b")
    assert line.longest_wait_ns(40) == 0


def test_a_wait_after_preemption_begins_with_it() -> None:
    preempted = waiting("a", 100)
    preempted.stage = "preempted"
    preempted.intervals = [Interval("queue", 0, 50, "kv_blocks"), Interval("prefill", 50, 80, "")]
    preempted.intervals += [Interval("preempted", 80, 100, "kv_blocks")]
    assert line_of(preempted).longest_wait_ns(130) == 50


def test_who_comes_back_in_front_puts_the_head_behind_it() -> None:
    first, second = waiting("a"), waiting("b")
    line = line_of(waiting("x"), first)
    line.leave("x")
    line.planned("kv_blocks", 10)
    line.join(second, (0, 0))
    line.planned("kv_blocks", 20)
    assert (line.head, second.reason, first.reason, first.since) == (second, "kv_blocks", "head_of_line", 20)
    assert [ledger.request_id for ledger in line.ledgers()] == ["b", "a"]


def test_those_behind_catch_up_when_they_are_looked_at() -> None:
    first, second = waiting("a"), waiting("b")
    line = line_of(first, second)
    for at, reason in ((10, "max_num_seqs"), (20, "max_num_seqs"), (30, "kv_blocks"), (40, "token_budget")):
        line.planned(reason, at)
    assert second.since == 10
    line.catch_up(second)
    line.catch_up(second)
    assert [(each.reason, each.begun_at) for each in second.intervals] == [
        (FIRST_LOOK, 0),
        ("max_num_seqs", 10),
        ("head_of_line", 30),
    ]
    assert (second.reason, second.since) == ("token_budget", 40)


def test_the_line_can_be_ordered_anew() -> None:
    line = line_of(waiting("a"), waiting("b"))
    line.rerank({"a": (5, 0), "b": (1, 1)})
    assert [ledger.request_id for ledger in line.ledgers()] == ["b", "a"]
    assert line.head is line.ledgers()[0]


@settings(max_examples=50, deadline=None, database=None)
@given(st.lists(st.tuples(st.sampled_from(("join", "leave", "plan")), st.integers(0, 9)), max_size=80))
def test_reasons_are_what_they_would_be_if_everybody_were_told_each_step(actions: list[tuple[str, int]]) -> None:
    line, told = WaitingLine(), dict[str, SequenceLedger]()
    ledgers: dict[str, SequenceLedger] = {}
    for at, (action, number) in enumerate(actions, 1):
        request_id = f"r-{number}"
        if action == "join" and request_id not in ledgers:
            ledgers[request_id], told[request_id] = waiting(request_id, at), waiting(request_id, at)
            line.join(ledgers[request_id], (0, number))
        elif action == "leave" and request_id in ledgers:
            line.leave(request_id)
            assert ledgers.pop(request_id).intervals_until(at) == told.pop(request_id).intervals_until(at)
        elif action == "plan":
            reason = ("kv_blocks", "max_num_seqs", "token_budget")[number % 3]
            line.planned(reason, at)
            for place, each in enumerate(sorted(told)):
                told[each].switch("queue", at, reason_behind(reason) if place else reason)
    assert line.by_reason() == Counter(each.reason for each in told.values())
    for request_id, ledger in ledgers.items():
        assert line.reason_of(ledger) == told[request_id].reason
        for at in range(ledger.since, len(actions) + 1):
            intervals = told[request_id].intervals_until(1000)
            assert [line.reason_of(ledger, at)] == [
                each.reason for each in intervals if each.begun_at <= at < each.ended_at
            ]
    for request_id, ledger in ledgers.items():
        line.catch_up(ledger)
        assert ledger.intervals_until(1000) == told[request_id].intervals_until(1000)


def test_the_list_of_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.telemetry.waiting_line.MAX_CHANGES", 4)
    first, second = waiting("a"), waiting("b")
    line = line_of(first, second)
    reasons = ["max_num_seqs", "token_budget"] * 10
    for at, reason in enumerate(reasons, 10):
        line.planned(reason, at)
    line.leave("b")
    assert [each.reason for each in second.intervals] == [FIRST_LOOK, *reasons[:-1]]


def test_those_who_left_do_not_stay_in_memory() -> None:
    line = WaitingLine()
    for number in range(1000):
        line.join(waiting(f"r-{number}"), (0, number))
        if number:
            line.leave(f"r-{number}")
    assert (len(line), len(line._heap) < 200) == (1, True)


def test_those_held_beside_the_line_have_their_own_reason_and_are_not_its_head() -> None:
    held, head, behind = waiting("a"), waiting("b"), waiting("c")
    line = line_of(held, head, behind)
    line.hold(["a"], "grammar", 10)
    line.planned("max_num_seqs", 10)
    line.hold([], "grammar", 20)
    line.planned("kv_blocks", 20)
    line.leave("a")
    assert held.intervals_until(30) == [
        *held.intervals_until(30)[:-3],
        Interval("queue", 0, 10, FIRST_LOOK),
        Interval("queue", 10, 20, "grammar"),
        Interval("queue", 20, 30, "kv_blocks"),
    ]
    assert [interval.reason for interval in head.intervals_until(30)][-2:] == ["max_num_seqs", "head_of_line"]
    line.planned("token_budget", 25)
    assert line.head is head


def test_one_that_leaves_while_it_is_held_is_forgotten() -> None:
    line = line_of(waiting("a"), waiting("b"))
    line.hold(["a", "unknown"], "grammar", 10)
    line.leave("a")
    line.hold([], "grammar", 20)
    assert (len(line), line.head and line.head.request_id) == (1, "b")


def test_since_when_each_waits_is_kept_whatever_becomes_of_its_intervals() -> None:
    first, second = waiting("a", 5), waiting("b", 12)
    line = line_of(first, second)
    for at in range(20, 8000, 10):
        line.planned("kv_blocks" if at % 20 else "max_num_seqs", at)
    assert [(waiter.ledger, waiter.since) for waiter in line.waiters()] == [(first, 5), (second, 12)]
    assert (line.longest_wait_ns(8000), len(second.intervals)) == (7995, 1)
