"""The inspector's view of steps: columns of numbers, one entry a step."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from vllm_obs.telemetry.binding_limit import binding_limit
from vllm_obs.telemetry.eager_reasons import execution_of
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView

StepNumber = Callable[[StepFacts], Any]

COLUMNS: dict[str, StepNumber] = {
    "step": lambda step: step.step,
    "schedule_begun_at": lambda step: step.planned.schedule_begun_at,
    "schedule_ended_at": lambda step: step.planned.schedule_ended_at,
    "executed_at": lambda step: step.answered.executed_at if step.answered else None,
    "sampled_at": lambda step: step.answered.sampled_at if step.answered else None,
    "updated_at": lambda step: step.answered.updated_at if step.answered else None,
    "num_requests": lambda step: len(step.planned.request_ids),
    "num_tokens": lambda step: sum(step.planned.num_scheduled_tokens),
    "num_new_tokens": lambda step: sum(step.answered.num_new_tokens) if step.answered else 0,
    "num_wasted_rows": lambda step: step.answered.num_wasted_rows if step.answered else 0,
    "num_new_blocks": lambda step: sum(step.planned.num_new_blocks),
    "num_admitted": lambda step: len(step.planned.admitted_ids),
    "num_resumed": lambda step: len(step.planned.resumed_ids),
    "num_preempted": lambda step: len(step.planned.preempted_ids),
    "num_left_out": lambda step: len(step.planned.left_out_ids),
    "head_reason": lambda step: step.planned.head_reason,
    "binding_limit": lambda step: step.limit or binding_limit(step.planned),
    "floor_seconds": lambda step: step.floor_seconds,
    "floor_ratio": lambda step: floor_ratio(step),
    "num_running": lambda step: step.planned.num_running,
    "num_waiting": lambda step: step.planned.num_waiting,
    "num_free_blocks": lambda step: step.planned.num_free_blocks,
    "num_cached_blocks": lambda step: step.planned.num_cached_blocks,
    "num_active_blocks": lambda step: step.planned.num_active_blocks,
    "execution": lambda step: execution_of_step(step),
    "num_padded_tokens": lambda step: sum(worker.num_padded_tokens for worker in step.workers),
    "error": lambda step: step.failed.error if step.failed else "",
    "ranks": lambda step: [_rank_times(step, index) for index in range(len(step.workers))],
}
"""Name → what of a step; moments are monotonic ns, None while there is none."""


def step_columns(steps: Iterable[StepFacts]) -> dict[str, list[Any]]:
    """The columns of these steps, parallel."""
    listed = list(steps)
    return {name: [number(step) for step in listed] for name, number in COLUMNS.items()}


def steps_since(state: RunState, engine: str, since: int, limit: int) -> dict[str, Any]:
    """The first `limit` steps of an engine after step `since`, or with -1 the last `limit` steps.

    `num_gone` steps after `since` are no longer kept. Numbers begin anew with another `pid`. Raises InspectError
    (404) for an engine that is not known.
    """
    found_engine = engine_of(state, engine)
    history = found_engine.steps
    found = history.newest(limit) if since < 0 else history.since(since, limit)
    last = history.last
    return {
        "engine": engine,
        "pid": found_engine.source.pid,
        "steps": step_columns(found),
        "next_since": found[-1].step if found else max(since, last.step if last else 0),
        "last_step": last.step if last else 0,
        "num_gone": max(0, history.oldest_step - since - 1) if since >= 0 and last else 0,
    }


def step_at(state: RunState, engine: str, moment: int) -> dict[str, Any]:
    """The last step begun by a moment (monotonic ns), or the oldest kept; InspectError (404) if none is."""
    history = engine_of(state, engine).steps
    found = next((step for step in reversed(history) if step.planned.schedule_begun_at <= moment), None)
    step = found.step if found is not None else history.oldest_step
    if not step:
        raise InspectError(f"no step of engine {engine} is kept", 404)
    return {"engine": engine, "step": step, "is_kept": found is not None}


def one_step(state: RunState, engine: str, number: int) -> dict[str, Any]:
    """Everything about a step: its rows, who was left out and why, ranks, outputs. InspectError (404) if gone."""
    step = engine_of(state, engine).steps.get(number)
    if step is None:
        raise InspectError(f"step {number} of engine {engine} is not kept", 404)
    return {
        "engine": engine,
        "planned": step.planned._asdict(),
        "answered": step.answered._asdict() if step.answered else None,
        "failed": step.failed._asdict() if step.failed else None,
        "binding_limit": step.limit or binding_limit(step.planned),
        "floor_seconds": step.floor_seconds,
        "workers": [worker._asdict() for worker in step.workers],
        "outputs": [outputs._asdict() for outputs in step.outputs],
    }


def engine_of(state: RunState, label: str) -> EngineState:
    """The engine that lives under this label, or the newest that did. InspectError (404) if none is known."""
    found = state.engines.get(label)
    if found is not None:
        return found
    for past in reversed(state.past_engines):
        if past.label == label:
            return past
    raise InspectError(f"there is no engine {label[:16]!r}; there are {sorted(state.engines)}", 404)


def floor_ratio(step: StepFacts) -> float | None:
    """The workers' time over the least that as much work was seen to take; None while that is not known."""
    return step.worker_ns / (1e9 * step.floor_seconds) if step.floor_seconds else None


def execution_of_step(step: StepFacts) -> str:
    """How its ranks ran it: `graph`, or why eagerly; that of the first rank that told, empty before."""
    if not step.workers:
        return ""
    return execution_of(step.workers[0].graph_size, step.workers[0].eager_reason)


def _rank_times(step: StepFacts, index: int) -> list[int]:
    """[rank, received, prepared, forwarded, sampling begun, sampled] of one rank."""
    worker = step.workers[index]
    moments = (
        worker.received_at,
        worker.prepared_at,
        worker.forwarded_at,
        worker.sample_begun_at,
        worker.sampled_at,
    )
    return [worker.rank, *moments]


class NewSteps(BaseView):
    """Steps that closed since they were taken last, for listeners; the oldest go when nobody takes them."""

    def __init__(self, capacity: int = 1024) -> None:
        self._steps: deque[StepFacts] = deque(maxlen=capacity)
        self.num_skipped = 0

    def step_closed(self, step: StepFacts) -> None:
        """Keep a step that ran something."""
        if not step.planned.request_ids:
            return
        self.num_skipped += len(self._steps) == self._steps.maxlen
        self._steps.append(step)

    def take(self) -> dict[str, dict[str, list[Any]]]:
        """Columns of the new steps by engine."""
        steps = list(self._steps)
        self._steps.clear()
        engines = sorted({step.engine for step in steps})
        return {engine: step_columns(step for step in steps if step.engine == engine) for engine in engines}

    def skip(self) -> None:
        """Nobody listens: whoever comes is told of what closes from now on."""
        self._steps.clear()
