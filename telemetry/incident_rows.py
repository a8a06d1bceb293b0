"""The last steps and the open requests as an incident keeps them: ids, lengths and moments, one row each."""

import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.incident_recording import tail_cursors
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.stages import Interval, append_interval, cut_intervals, ns_by_reason, ns_by_stage
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_phases import phase_ns

MAX_STEPS = 256
"""Of each engine."""
NUM_STEPS = 100
"""So many an incident should have, when there were as many."""
REREAD_SECONDS = 1.0
MAX_ROWS = 64
"""Of each step; how many there were is told."""
MAX_REQUESTS = 4096
_LEVELS = ("num_running", "num_waiting", "num_free_blocks", "num_cached_blocks", "num_active_blocks")

Row = dict[str, Any]


def engines_of(state: RunState) -> list[EngineState]:
    """The engines that live, and the last that did of those labels that nobody has now."""
    engines = {engine.label: engine for engine in state.past_engines} | state.engines
    return [engines[label] for label in sorted(engines)]


def step_rows(state: RunState, until: int, engine: str = "") -> list[Row]:
    """The last steps of that engine, or of every one, that had begun by then (monotonic ns), oldest first."""
    begun_by: dict[str, list[StepFacts]] = {}
    for each in [*state.past_engines, *state.engines.values()]:  # of a label the last that did anything by then
        if engine and each.label != engine:
            continue
        if begun := [step for step in each.steps if step.planned.schedule_begun_at <= until]:
            begun_by[each.label] = begun
    return [_step_row(step) for label in sorted(begun_by) for step in begun_by[label][-MAX_STEPS:]]


def state_with_steps(observer: Observer, run_dir: Path) -> RunState:
    """The state of the run; of an Observer that has just been started again one with the steps before that too.

    Those are read from the ends of the rings: it knows nothing exact but them.
    """
    state = observer.state
    num_steps = min((len(engine.steps) for engine in engines_of(state)), default=0)
    if not observer.cost.resumed_at or num_steps >= NUM_STEPS:
        return state
    reread = Observer(observer.run, clock=None)
    reread.tail = RingTail(run_dir, tail_cursors(run_dir))
    deadline = time.monotonic() + REREAD_SECONDS
    while not reread.drain_slice() and time.monotonic() < deadline:
        continue
    reread.close()
    return reread.state


def open_requests(
    state: RunState, at: int, gone: Iterable[int] = (), engine: str = "", is_of_gone: bool = False
) -> list[SequenceLedger]:
    """The sequences that were under way at that moment, oldest first; `gone` API servers (generations) died.

    One whose API server died gets no ending; whether it was open then, only that tells. Of an `engine` those that
    it had, and of the only one those on their way to it as well; `is_of_gone`: only those of the gone servers.
    """
    generations = set(gone)
    labels = {engine, ""} if len({each.label for each in engines_of(state)}) == 1 else {engine}
    found = [
        ledger
        for ledger in chain(state.sequences.values(), state.ended)
        if _is_open(ledger, at, generations)
        and (not engine or ledger.engine in labels)
        and (not is_of_gone or ledger.api_generation in generations)
    ]
    return sorted(found, key=lambda ledger: (ledger.submitted.received_at, ledger.request_id))


def request_rows(state: RunState, ledgers: Iterable[SequenceLedger], at: int) -> Iterator[Row]:
    """What became of each of these up to that moment."""
    for ledger in islice(ledgers, MAX_REQUESTS):
        intervals = state.intervals(ledger, at)
        cut_intervals(intervals, at)
        if intervals and ledger.ended is None:
            # One whose API server died is known up to the last step; there, or on its way to the core, it stayed.
            last = intervals[-1]
            stage, reason = (last.stage, last.reason) if ledger.taken_at else ("submit", "")
            append_interval(intervals, Interval(stage, last.ended_at, at, reason))
        yield _request_row(ledger, intervals, at)


def _is_open(ledger: SequenceLedger, at: int, gone: set[int]) -> bool:
    if ledger.submitted.received_at > at:
        return False
    if ledger.ended is not None:
        return ledger.ended.ended_at >= at
    return not ledger.is_closed or ledger.api_generation in gone


def _request_row(ledger: SequenceLedger, intervals: list[Interval], at: int) -> Row:
    submitted = ledger.submitted
    last = intervals[-1] if intervals else Interval(ledger.stage, at, at, ledger.reason)
    return {
        "request_id": submitted.request_id,
        "http_id": submitted.http_id,
        "external_id": submitted.external_id,
        "engine": ledger.engine,
        "operation": submitted.operation,
        "received_at": submitted.received_at,
        "taken_at": ledger.taken_at or None,
        "age_ns": at - submitted.received_at,
        "stage": last.stage,
        "reason": last.reason,
        "in_stage_ns": last.num_ns,
        "stage_ns": {stage: length for stage, length in ns_by_stage(intervals).items() if length},
        "waits": ns_by_reason(intervals),
        "num_prompt_tokens": submitted.num_prompt_tokens,
        "max_tokens": submitted.max_tokens,
        "num_output_tokens": ledger.num_output_tokens,
        "num_cached_tokens": ledger.num_cached_tokens,
        "num_preemptions": ledger.num_preemptions,
        "num_steps": ledger.num_steps,
        "last_step": ledger.last_step,
        "last_token_at": ledger.last_token_at or None,
        "is_partial": ledger.is_partial,
        "finish_reason": ledger.ended.finish_reason if ledger.ended else "",
    }


def _step_row(step: StepFacts) -> Row:
    planned, answered = step.planned, step.answered
    columns = (planned.num_scheduled_tokens, planned.num_computed_tokens, planned.num_new_blocks)
    rows = zip(planned.request_ids, *columns, strict=True)
    left_out = zip(planned.left_out_ids, planned.left_out_reasons, strict=True)
    return {
        "engine": step.engine,
        "step": step.step,
        "schedule_begun_at": planned.schedule_begun_at,
        "schedule_ended_at": planned.schedule_ended_at,
        "executed_at": answered.executed_at if answered else None,
        "sampled_at": answered.sampled_at if answered else None,
        "updated_at": answered.updated_at if answered else None,
        "phase_ns": phase_ns(step),
        "num_requests": len(planned.request_ids),
        "num_tokens": sum(planned.num_scheduled_tokens),
        "num_new_tokens": sum(answered.num_new_tokens) if answered else 0,
        "requests": [list(row) for row in islice(rows, MAX_ROWS)],
        "admitted": planned.admitted_ids[:MAX_ROWS],
        "resumed": planned.resumed_ids[:MAX_ROWS],
        "preempted": planned.preempted_ids[:MAX_ROWS],
        "left_out": [list(pair) for pair in islice(left_out, MAX_ROWS)],
        "head_reason": planned.head_reason,
        **{name: getattr(planned, name) for name in _LEVELS},
        "failed": step.failed.error.partition(":")[0] if step.failed else "",
        "workers": [worker._asdict() for worker in step.workers],
    }
