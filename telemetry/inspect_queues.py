"""The inspector's view of an engine's queues as they are now: who waits and why, who runs and how far it is."""

from collections import Counter
from itertools import islice
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.run_state import RunState

MAX_WAITING_SHOWN = 200
MAX_WAITING_COUNTED = 2000
MAX_RUNNING_SHOWN = 1000
NS = 1e9


def queues_view(state: RunState, engine: str, now: int) -> dict[str, Any]:
    """Both queues of an engine in its scheduler's order. InspectError (404) where it is not known.

    Of a very long line the reasons of the first MAX_WAITING_COUNTED are counted, `num_counted` says of how many.
    """
    found = engine_of(state, engine)
    last = found.steps.last
    line = found.builder.roster.line
    waiting = list(islice(line.ledgers(), MAX_WAITING_COUNTED))
    for ledger in waiting:
        state.intervals(ledger, now)  # brings its reason up to date
    reasons = Counter(ledger.reason or "unknown" for ledger in waiting)
    running = [ledger for ledger in found.builder.roster.ledgers.values() if ledger.request_id not in line]
    return {
        "engine": found.label,
        "step": last.step if last is not None else 0,
        "head_reason": waiting[0].reason if waiting else "",
        "num_waiting": len(line),
        "num_counted": len(waiting),
        "by_reason": dict(reasons.most_common()),
        "waiting": [_waiting_row(ledger, place, now) for place, ledger in enumerate(waiting[:MAX_WAITING_SHOWN])],
        "num_running": len(running),
        "running": [_running_row(found, ledger, now) for ledger in running[:MAX_RUNNING_SHOWN]],
    }


def _waiting_row(ledger: SequenceLedger, place: int, now: int) -> dict[str, Any]:
    return {
        "request_id": ledger.request_id,
        "place": place,
        "reason": ledger.reason,
        "seconds": max(0, now - ledger.waiting_since) / NS,
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
