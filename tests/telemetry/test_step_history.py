"""The last steps are found by number and by age, and no more are kept than may be."""

import pytest
from fact_stream import FactStream

from vllm_obs.telemetry.records import StepAnswered, StepPlanned
from vllm_obs.telemetry.step_history import (
    MAX_SHARERS,
    MAX_STEP_AGE_NS,
    MAX_STEPS,
    StepFacts,
    StepHistory,
    share_columns,
)


def step(number: int, at: int = 0) -> StepFacts:
    stream = FactStream(now=at)
    stream.num_steps = number - 1
    (planned,) = [record for _, record in stream.step() if isinstance(record, StepPlanned)]
    return StepFacts("0", planned)


def planned_of(stream: FactStream, rows: list[str]) -> StepPlanned:
    (planned,) = [record for _, record in stream.step(rows) if isinstance(record, StepPlanned)]
    return planned


def history(*steps: StepFacts, max_steps: int = 100) -> StepHistory:
    kept = StepHistory(max_steps)
    for facts in steps:
        kept.add(facts)
    return kept


def numbers(steps: list[StepFacts]) -> list[int]:
    return [facts.step for facts in steps]


def test_steps_are_found_by_number() -> None:
    second = step(2)
    kept = history(step(1), second, step(4))
    assert (kept.get(2), kept.get(3), kept.oldest_step) == (second, None, 1)
    assert kept.last is not None
    assert (kept.last.step, len(kept)) == (4, 3)


def test_parts_of_the_history_come_oldest_first() -> None:
    kept = history(*map(step, range(1, 10)))
    assert numbers(list(kept)) == list(range(1, 10))
    assert numbers(kept.since(4, limit=3)) == [5, 6, 7]
    assert (numbers(kept.newest(2)), numbers(kept.newest(0)), numbers(kept.since(9, 5))) == ([8, 9], [], [])


def test_only_so_many_steps_are_kept() -> None:
    kept = history(*map(step, range(1, 10)), max_steps=3)
    assert (numbers(list(kept)), kept.get(6), kept.oldest_step) == ([7, 8, 9], None, 7)


def test_only_so_many_rows_are_kept() -> None:
    stream = FactStream()
    for name in ("a", "b", "c"):
        stream.submit(name)
    facts = [StepFacts("0", planned) for planned in (planned_of(stream, ["a", "b"]) for _ in range(3))]
    kept = StepHistory(max_rows=4)
    for each in facts:
        kept.add(each)
    assert numbers(list(kept)) == [2, 3]
    kept.add(StepFacts("0", planned_of(stream, ["a", "b", "c"])))
    assert numbers(list(kept)) == [4]


def test_steps_with_the_same_rows_share_them() -> None:
    stream = FactStream()
    for name in ("a", "b"):
        stream.submit(name)
    first, second = planned_of(stream, ["a", "b"]), planned_of(stream, ["a", "b"])
    shared = share_columns(second, first)
    assert shared == second
    assert shared.request_ids is first.request_ids
    assert shared.num_computed_tokens is second.num_computed_tokens
    assert share_columns(first, None) is first


def test_steps_are_not_kept_for_longer_than_ten_minutes() -> None:
    kept = history(step(1, at=0), step(2, at=5), step(3, at=MAX_STEP_AGE_NS + 1))
    assert numbers(list(kept)) == [2, 3]


def test_an_empty_history_has_no_last_step() -> None:
    kept = history()
    assert (kept.last, kept.oldest_step, kept.newest(5), kept.since(0, 5)) == (None, 0, [], [])


def timed(number: int, begun_at: int, ended_at: int | None) -> StepFacts:
    """A step of one row; without an end it has not answered."""
    planned = step(number).planned._replace(
        schedule_begun_at=begun_at, schedule_ended_at=begun_at + 1, request_ids=["r"]
    )
    answered = StepAnswered(number, ended_at - 2, ended_at - 1, ended_at, ["r"], [1], 0) if ended_at else None
    return StepFacts("0", planned, answered=answered)


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((0, 100), []),
        ((120, 150), [(1, 120, 150)]),
        ((150, 250), [(1, 150, 200), (2, 210, 250)]),
        ((200, 210), []),
        ((0, 1000), [(1, 100, 200), (2, 210, 300), (3, 290, 400)]),
        ((350, 360), [(3, 350, 360)]),
        ((400, 1000), []),
    ],
)
def test_it_is_known_which_steps_an_engine_was_inside_of(
    span: tuple[int, int], expected: list[tuple[int, int, int]]
) -> None:
    kept = history(timed(1, 100, 200), timed(2, 210, 300), timed(3, 290, 400))
    assert [(found.step.step, found.begun_at, found.ended_at) for found in kept.within(*span)] == expected


def test_a_step_that_does_not_answer_lasts_on_until_a_later_one_has() -> None:
    kept = history(timed(1, 100, 200), timed(2, 210, None))
    assert [found.num_ns for found in kept.within(250, 900)] == [650]
    kept.add(timed(3, 400, 450))
    assert [(found.step.step, found.num_ns) for found in kept.within(250, 900)] == [(2, 150), (3, 50)]


def test_a_step_whose_answer_may_be_lost_counts_only_when_it_has_come() -> None:
    doubtful = timed(2, 210, None)
    kept = history(timed(1, 100, 200), doubtful)
    kept.lost()
    assert [found.step.step for found in kept.within(150, 900)] == [1]
    kept.add(timed(3, 400, None))
    assert [found.step.step for found in kept.within(150, 900)] == [1, 3]
    doubtful.answered = timed(2, 210, 300).answered
    assert [(found.step.step, found.num_ns) for found in kept.within(150, 900)] == [(1, 50), (2, 90), (3, 500)]


def test_many_engines_share_what_a_few_may_keep_each() -> None:
    kept = history(*map(step, range(1, 10)))
    kept.limit(MAX_SHARERS)
    assert len(kept) == 9
    kept.limit(MAX_STEPS * MAX_SHARERS // 3)
    kept.add(step(10))
    assert numbers(list(kept)) == [8, 9, 10]
