"""The inspector's view of an engine's queues as they are now: who waits and why, who runs and how far it is."""

from itertools import islice
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.waiting_line import Waiter

MAX_WAITING_SHOWN = 200
MAX_RUNNING_SHOWN = 1000
NS = 1e9


def queues_view(state: RunState, engine: str, now: int) -> dict[str, Any]:
    """Both queues of an engine in its scheduler's order. InspectError (404) where it is not known.

    The reasons of all are counted (`num_counted`). A look at 10,000 who wait costs a sorting of them.
    """
    found = engine_of(state, engine)
    last = found.steps.last
    roster = found.builder.roster
    line = roster.line
    waiting = line.waiters()[:MAX_WAITING_SHOWN]
    reasons = {reason or "unknown": num for reason, num in line.by_reason().most_common()}
    running = (ledger for request_id, ledger in roster.ledgers.items() if request_id not in line)
    return {
        "engine": found.label,
        "step": last.step if last is not None else 0,
        "head_reason": line.reason_of(waiting[0].ledger) if waiting else "",
        "num_waiting": len(line),
        "num_counted": len(line),
        "by_reason": reasons,
        "waiting": [
            waiting_row(waiter, place, line.reason_of(waiter.ledger), now) for place, waiter in enumerate(waiting)
        ],
        "num_running": roster.num_running,
        "running": [_running_row(found, ledger, now) for ledger in islice(running, MAX_RUNNING_SHOWN)],
    }


def open_waits(state: RunState, now: int, engine: str | None = None) -> list[float]:
    """How long each has waited (seconds) that waits to be admitted for the first time, of one engine or of all."""
    found = [each for label, each in state.engines.items() if engine in (None, label)]
    waiters = (waiter for each in found for waiter in each.builder.roster.line.waiters())
    return [max(0, now - waiter.since) / NS for waiter in waiters if waiter.ledger.stage == "queue"]


def waiting_row(waiter: Waiter, place: int, reason: str, now: int) -> dict[str, Any]:
    """One who waits, for this reason now, at this place of the line."""
    ledger = waiter.ledger
    return {
        "request_id": ledger.request_id,
        "place": place,
        "reason": reason,
        "seconds": max(0, now - waiter.since) / NS,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
        "state": "preempted" if ledger.stage == "preempted" else "waiting",
    }


def _running_row(engine: EngineState, ledger: SequenceLedger, now: int) -> dict[str, Any]:
    """How far one that runs is; `num_blocks` is None where the map of blocks lacks records."""
    last = engine.steps.last
    run = ledger.step_runs[-1] if ledger.step_runs else None
    is_in_step = last is not None and ledger.last_step == last.step
    held = engine.blocks.table(ledger.request_id) if engine.blocks.is_exact else None
    return {
        "request_id": ledger.request_id,
        "stage": ledger.stage,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
        "num_output_tokens": ledger.num_output_tokens,
        "num_cached_tokens": ledger.num_cached_tokens,
        "num_computed_tokens": run.num_computed + run.num_steps * run.num_tokens if run is not None else 0,
        "num_scheduled_tokens": run.num_tokens if run is not None and is_in_step else 0,
        "num_blocks": len(held) if held is not None else None,
        "num_preemptions": ledger.num_preemptions,
        "last_token_age_seconds": (now - ledger.last_token_at) / NS if ledger.last_token_at else None,
    }
