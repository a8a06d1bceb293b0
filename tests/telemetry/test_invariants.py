"""A run in which nothing is wrong keeps every law; each, broken on purpose, is reported with its numbers."""

from collections.abc import Callable
from typing import Any

import pytest
from fact_stream import API_SERVER, ENGINE, FactStream

from vllm_obs.telemetry.invariants import LAWS, MAX_EVIDENCE_CHARS, Breach, Invariants
from vllm_obs.telemetry.records import (
    BlocksKeyframe,
    Record,
    RequestEnded,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepPlanned,
)
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import RecordsLost, Source

LONG_AFTER = 20 * 10**9
Facts = list[tuple[Source, Record]]


def a_run() -> FactStream:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    stream.step({"r-0": 4})
    stream.step(["r-0"])
    stream.step(["r-0"])
    stream.keyframes()
    stream.finish("r-0")
    return stream


def changed(kind: type, **changes: Callable[[Any], Any]) -> Callable[[Facts], Facts]:
    """The last record of a kind with some fields made from what they were."""

    def change(facts: Facts) -> Facts:
        index = max(index for index, (_, record) in enumerate(facts) if isinstance(record, kind))
        source, record = facts[index]
        fields = {name: make(getattr(record, name)) for name, make in changes.items()}
        return [*facts[:index], (source, record._replace(**fields)), *facts[index + 1 :]]

    return change


def repeated(kind: type) -> Callable[[Facts], Facts]:
    def repeat(facts: Facts) -> Facts:
        index = min(index for index, (_, record) in enumerate(facts) if isinstance(record, kind))
        return [*facts[: index + 1], *facts[index:]]

    return repeat


def without(kind: type) -> Callable[[Facts], Facts]:
    return lambda facts: [fact for fact in facts if not isinstance(fact[1], kind)]


def misnumbered(facts: Facts) -> Facts:
    """The last step has the number of the one before, both planned and answered."""
    for kind in (StepPlanned, StepAnswered):
        facts = changed(kind, step=lambda step: step - 1)(facts)
    return facts


BREAKS: list[tuple[str, Callable[[Facts], Facts], str]] = [
    ("arrivals", repeated(RequestEnded), "ended twice"),
    ("arrivals", repeated(RequestSubmitted), "submitted twice"),
    ("arrivals", without(RequestSubmitted), "released without having been submitted"),
    ("in_core", repeated(RequestTaken), "taken twice"),
    ("in_core", without(RequestTaken), "named by the core but never taken"),
    ("in_core", changed(StepPlanned, num_waiting=lambda num: num + 1), "the core has 2 sequences, we 1"),
    (
        "prompt_tokens",
        changed(RequestSubmitted, num_prompt_tokens=lambda num: num + 1),
        "0 cached + 0 cached when resumed + 10 computed of 11 prompt tokens",
    ),
    (
        "output_tokens",
        changed(RequestReleased, num_output_tokens=lambda num: num + 1),
        "released with 3 tokens, steps answered 2",
    ),
    (
        "used_tokens",
        changed(RequestEnded, num_output_tokens=lambda num: num + 1),
        "ended with 3 tokens, released with 2",
    ),
    ("blocks", changed(StepPlanned, num_free_blocks=lambda num: num - 1), "3 active + 0 cached + 60 free of 64"),
    (
        "block_map",
        changed(StepPlanned, num_free_blocks=lambda num: num - 1, num_cached_blocks=lambda num: num + 1),
        "active, cached, free: (3, 0, 61) in the map, (3, 1, 60) in the core",
    ),
    (
        "block_map",
        changed(BlocksKeyframe, reference_counts=lambda counts: [counts[0] + 1, *counts[1:]]),
        "1 of the blocks 0 to 63 differ from the keyframe",
    ),
    ("no_negative_time", changed(RequestEnded, taken_at=lambda at: at - 1_000_000), "Interval(stage='return'"),
    (
        "stages",
        changed(RequestEnded, finish_reason=lambda _: "abort", ended_at=lambda _: 1),
        "deliver begins at 1,",
    ),
    ("step_order", repeated(StepAnswered), "answered again when it was over"),
    ("step_order", without(StepPlanned), "answered without having been planned"),
    ("step_order", misnumbered, "after 2"),
]


def applied(facts: Facts) -> dict[str, Breach]:
    state = RunState()
    for source, record in facts:
        state.apply(source, record)
    state.tick(LONG_AFTER)
    return {breach.law: breach for breach in state.invariants.breaches() if breach.num_broken}


def test_a_run_in_which_nothing_is_wrong_breaks_no_law() -> None:
    assert applied(a_run().facts) == {}


@pytest.mark.parametrize(("law", "spoil", "evidence"), BREAKS)
def test_a_broken_law_is_reported(law: str, spoil: Callable[[Facts], Facts], evidence: str) -> None:
    found = applied(spoil(a_run().facts))
    assert law in found
    assert found[law].num_broken >= 1
    assert found[law].evidence.startswith(evidence)
    assert found[law].last_at > 0


@pytest.mark.parametrize("source", [ENGINE, API_SERVER])
def test_what_records_were_lost_about_is_not_judged(source: Source) -> None:
    state = RunState()
    facts = a_run().facts
    for index, (each, record) in enumerate(facts):
        if index == 7:
            state.apply(source, RecordsLost(5))
        if index < 7 or each != source or index > 11:
            state.apply(each, record)
    state.tick(LONG_AFTER)
    assert state.invariants.num_broken == 0
    assert [(ledger.request_id, ledger.is_complete) for ledger in state.ended] == [("r-0", False)]


def test_every_law_is_broken_by_some_test() -> None:
    assert {law for law, _, _ in BREAKS} == set(LAWS)


def test_breaches_are_counted_by_law_and_the_last_is_kept() -> None:
    laws = Invariants()
    laws.report("blocks", 10, "step 1", "first")
    laws.report("blocks", 20, "step 2", "x" * 2 * MAX_EVIDENCE_CHARS)
    assert laws.counts() == dict.fromkeys(LAWS, 0) | {"blocks": 2}
    assert laws.breaches()[list(LAWS).index("blocks")] == Breach(
        "blocks", 2, 20, "step 2", "x" * MAX_EVIDENCE_CHARS
    )
    with pytest.raises(KeyError):
        laws.report("gravity", 10, "", "")
    later = Invariants()
    later.restore([*laws.state(), Breach("a law of a newer version", 1)])
    assert later.counts() == laws.counts()
