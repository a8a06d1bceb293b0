"""The inspector's view of the queue as it was when a step had been planned: who waited, since when and why."""

from bisect import bisect_right
from itertools import chain, islice
from typing import Any, NamedTuple

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.run_state import RunState

MAX_QUEUE_SHOWN = 200
WAIT_STATES = {"queue": "waiting", "preempted": "preempted"}
"""Stage of a sequence in the line → its state."""
NS = 1e9


class _Wait(NamedTuple):
    """The wait that a sequence was in at a moment: its stage, when it began, and its reason at that moment."""

    stage: str
    begun_at: int
    reason: str


def queue_of(state: RunState, engine: str, number: int) -> dict[str, Any]:
    """Those whom a step's plan left waiting, the next to be admitted first, at most 200.

    `num_waiting` is the core's own count; sequences that ended long ago are not listed, nor those that had their
    last used token already and were still in the core. `seconds` is how long the wait had lasted, `reason` what
    the plan gave. InspectError (404) where the step is gone. A look costs a sorting of all that are kept and had
    not run by then: a few ms where they are 20,000.
    """
    found = engine_of(state, engine)
    step = found.steps.get(number)
    if step is None:
        raise InspectError(f"step {number} of engine {engine} is not kept", 404)
    at = step.planned.schedule_ended_at
    waiting = ((ledger, _wait_at(found, ledger, at, number)) for ledger in _in_order(state, found, at, number))
    shown = islice(((ledger, wait) for ledger, wait in waiting if wait is not None), MAX_QUEUE_SHOWN)
    return {
        "engine": engine,
        "step": number,
        "planned_at": at,
        "head_reason": step.planned.head_reason,
        "num_waiting": step.planned.num_waiting,
        "waiting": [_row(ledger, wait, place, at) for place, (ledger, wait) in enumerate(shown)],
    }


def _in_order(state: RunState, engine: EngineState, at: int, number: int) -> list[SequenceLedger]:
    """The kept sequences that may have been in the line, as the scheduler orders them."""
    book, label = state.book, engine.label
    found = [
        ledger
        for ledger in chain(book.ended, book.live.values(), book.orphans.values())
        if 0 < ledger.taken_at <= at
        and (ledger.num_preemptions or not 0 < ledger.first_step <= number)
        and ledger.engine == label
    ]
    found.sort(key=lambda ledger: ledger.taken_at)
    if engine.builder.roster.by_priority:
        found.sort(key=lambda ledger: ledger.submitted.priority)
    return found


def _wait_at(engine: EngineState, ledger: SequenceLedger, at: int, number: int) -> _Wait | None:
    """The wait that it was in at that moment, None if it did not wait."""
    line = engine.builder.roster.line
    waiter = line.get(ledger.request_id)
    if ledger.is_closed and ledger.ended_at <= at:
        return None
    intervals = ledger.intervals
    if not ledger.is_closed and ledger.since <= at:
        if ledger.stage not in WAIT_STATES:
            return None
        reason = line.reason_of(ledger, at)
        if waiter is not None:
            return _Wait(ledger.stage, waiter.since, reason)
        return _Wait(ledger.stage, ledger.waiting_since, reason)
    index = bisect_right(intervals, at, key=lambda interval: interval.begun_at) - 1
    if index < 0 or intervals[index].ended_at <= at or intervals[index].stage not in WAIT_STATES:
        return None
    stage, _, _, reason = intervals[index]
    if waiter is not None and waiter.since <= at:
        return _Wait(stage, waiter.since, reason)
    has_run = 0 < ledger.first_step <= number
    return _Wait(stage, _begin_of_wait(ledger, index) if has_run else _begin_of_queue(ledger), reason)


def _begin_of_wait(ledger: SequenceLedger, index: int) -> int:
    """Since when it has been in the stage of an interval, whatever its reasons were."""
    intervals = ledger.intervals
    stage = intervals[index].stage
    while index > 0 and intervals[index - 1].stage == stage:
        index -= 1
    return intervals[index].begun_at


def _begin_of_queue(ledger: SequenceLedger) -> int:
    """Of one that has not run: what comes before are a few stages, while its reasons may be thousands."""
    return next(interval.begun_at for interval in ledger.intervals if interval.stage in WAIT_STATES)


def _row(ledger: SequenceLedger, wait: _Wait, place: int, at: int) -> dict[str, Any]:
    return {
        "request_id": ledger.request_id,
        "place": place,
        "reason": wait.reason,
        "seconds": (at - wait.begun_at) / NS,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
        "state": WAIT_STATES[wait.stage],
    }
