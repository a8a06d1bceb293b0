"""The inspector's view of the queue as it was when a step had been planned: who waited, since when and why."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_context import InspectError
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.stages import Interval

MAX_QUEUE_SHOWN = 200
WAIT_STATES = {"queue": "waiting", "preempted": "preempted"}
"""Stage of a sequence in the line → its state."""
NS = 1e9


def queue_of(state: RunState, engine: str, number: int, now: int) -> dict[str, Any]:
    """Those whom a step's plan left waiting, the next to be admitted first, at most 200.

    `num_waiting` is the core's own count; sequences that ended long ago are not listed, nor those that had their
    last used token already and were still in the core. `seconds` is how long the wait had lasted, `reason` what
    the plan gave. InspectError (404) where the step is gone.
    """
    found = engine_of(state, engine)
    step = found.steps.get(number)
    if step is None:
        raise InspectError(f"step {number} of engine {engine} is not kept", 404)
    at = step.planned.schedule_ended_at
    by_priority = found.builder.roster.by_priority
    waiting = [ledger for ledger in _in_core(state, found, at, number) if _wait_at(ledger, at) is not None]
    waiting.sort(key=lambda ledger: (ledger.submitted.priority if by_priority else 0, ledger.taken_at))
    shown = waiting[:MAX_QUEUE_SHOWN]
    return {
        "engine": engine,
        "step": number,
        "planned_at": at,
        "head_reason": step.planned.head_reason,
        "num_waiting": step.planned.num_waiting,
        "waiting": [_row(state, ledger, place, at, now) for place, ledger in enumerate(shown)],
    }


def _in_core(state: RunState, engine: EngineState, at: int, number: int) -> Iterator[SequenceLedger]:
    """The kept sequences that were in the core, less most of those that ran."""
    book = state.book
    for ledger in chain(book.ended, book.live.values(), book.orphans.values()):
        if ledger.engine != engine.label or not 0 < ledger.taken_at <= at:
            continue
        has_run = 0 < ledger.first_step <= number and not ledger.num_preemptions
        if not has_run and not (ledger.is_closed and ledger.ended_at <= at):
            yield ledger


def _wait_at(ledger: SequenceLedger, at: int) -> Interval | None:
    """The wait that it was in at that moment, since its beginning, with the reason at that moment."""
    intervals = ledger.intervals
    if not ledger.is_closed and ledger.since <= at:
        current = Interval(ledger.stage, ledger.since, at + 1, ledger.reason)
        index = len(intervals)
    else:
        index = next((i for i in range(len(intervals) - 1, -1, -1) if intervals[i].begun_at <= at), -1)
        if index < 0 or intervals[index].ended_at <= at:
            return None
        current = intervals[index]
    if current.stage not in WAIT_STATES:
        return None
    begun_at = current.begun_at
    while index > 0 and intervals[index - 1].stage == current.stage:
        index -= 1
        begun_at = intervals[index].begun_at
    return current._replace(begun_at=begun_at)


def _row(state: RunState, ledger: SequenceLedger, place: int, at: int, now: int) -> dict[str, Any]:
    # Those behind the head are given their reasons only when they are looked at.
    state.intervals(ledger, now)
    wait = _wait_at(ledger, at)
    assert wait is not None, "only a reason can have changed"
    return {
        "request_id": ledger.request_id,
        "place": place,
        "reason": wait.reason,
        "seconds": (at - wait.begun_at) / NS,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
        "state": WAIT_STATES[wait.stage],
    }
