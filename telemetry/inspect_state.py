"""The inspector's first answer: is it well, what runs, who waits and why, how fast, and what telemetry lost."""

import time
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

from vllm_obs.telemetry.block_map import BlockLevels
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import ProcessStarted
from vllm_obs.telemetry.run_snapshot import AWAKE
from vllm_obs.telemetry.run_state import RunState

MAX_WAITING_SHOWN = 20
MAX_WAITING_COUNTED = 2000
STALL_SECONDS = 10.0
"""An engine with work that has ended no step for so long is said to stand still."""
NS = 1e9


class Health(NamedTuple):
    """A word from a closed set, and a sentence."""

    word: str
    says: str


def run_view(context: InspectContext) -> dict[str, Any]:
    """All of `/inspect/state`."""
    observer = context.observer
    state, now = observer.state, observer.now()
    health = health_of(observer, now)
    starts = [record.started_at for _, record in observer.facts if isinstance(record, ProcessStarted)]
    return {
        "run": observer.run,
        "clock": {"monotonic_at": now, "wall_at": observer.wall_offset + now},
        "uptime_seconds": max(0, now - min(starts, default=now)) / NS,
        "health": health._asdict(),
        "models": models_of(context),
        "engines": [engine_view(observer, label, now) for label in sorted(state.engines)],
        "requests": _request_counts(state),
        "throughput": observer.rates.rates(now),
        "waiting": waiting_view(state, now),
        "api_servers": [loop._asdict() for _, loop in sorted(state.loops.items())],
        "telemetry": telemetry_view(context),
    }


def models_of(context: InspectContext) -> list[str]:
    """The names the model is served under."""
    for engine in context.observer.state.engines.values():
        if engine.described is not None:
            return list(engine.described.model_names)
    return list(context.config.served_model_names)


def health_of(observer: Observer, now: int) -> Health:
    """How the run is, judged by its engines."""
    state = observer.state
    if not observer.is_live:
        return Health("recording", f"A recording of run {observer.run}; time stands still.")
    if not state.engines:
        if state.past_engines:
            return Health("engine_dead", "The engine has ended and no other has started.")
        return Health("starting", "No engine has started yet.")
    stalls = [stall for label in sorted(state.engines) if (stall := _stall(state, label, now))]
    if stalls:
        return Health("stalled", " ".join(stalls))
    paused = [label for label in sorted(state.engines) if state.engines[label].state != AWAKE]
    if paused:
        work = ", ".join(f"engine {label} with {_work(state.engines[label])}" for label in paused)
        return Health("paused", f"Paused by order: {work}.")
    num_running = sum(engine.num_running for engine in state.engines.values())
    num_waiting = sum(engine.num_waiting for engine in state.engines.values())
    if any(engine.described is None for engine in state.engines.values()):
        return Health("starting", "The engine is loading.")
    if not num_running and not num_waiting:
        return Health("idle", "Ready; nothing is under way.")
    return Health("ok", f"{num_running} running, {num_waiting} waiting.")


def engine_view(observer: Observer, label: str, now: int) -> dict[str, Any]:
    """One engine: its queues, blocks and loop."""
    engine = observer.state.engines[label]
    planned, answered = engine.last_planned, engine.last_answered
    last_at = answered.updated_at if answered else None
    return {
        "engine": label,
        "state": engine.state,
        "num_running": engine.num_running,
        "num_waiting": engine.num_waiting,
        "last_step": engine.steps.last.step if engine.steps.last else 0,
        "last_step_age_seconds": max(0, now - last_at) / NS if last_at else None,
        "head_reason": planned.head_reason if planned else "",
        "blocks": _blocks_of(engine),
        "loop": observer.rates.loop_shares(now, label),
    }


def _blocks_of(engine: EngineState) -> dict[str, Any]:
    """Blocks as they are now; as the last plan saw them where the map has lost records (`is_exact` says which)."""
    described, planned, is_exact = engine.described, engine.last_planned, engine.blocks.is_exact
    num_blocks = described.num_blocks if described else 0
    levels = BlockLevels(0, 0, num_blocks)
    if is_exact:
        levels = engine.blocks.levels
    elif planned is not None:
        levels = BlockLevels(planned.num_active_blocks, planned.num_cached_blocks, planned.num_free_blocks)
    return {
        "num_blocks": num_blocks,
        **levels._asdict(),
        "usage": levels.num_active / num_blocks if num_blocks else 0.0,
        "block_size": described.block_size if described else 0,
        "is_exact": is_exact,
    }


def waiting_view(state: RunState, now: int) -> dict[str, Any]:
    """Who waits, the head of each line first, and how many for which reason.

    Of a very long line the reasons of the first MAX_WAITING_COUNTED are counted.
    """
    reasons: Counter[str] = Counter()
    shown: list[dict[str, Any]] = []
    num_waiting = num_counted = 0
    for label in sorted(state.engines):
        line = state.engines[label].builder.roster.line
        num_waiting += len(line)
        for place, ledger in enumerate(islice(line.ledgers(), MAX_WAITING_COUNTED)):
            state.intervals(ledger, now)
            reasons[ledger.reason or "unknown"] += 1
            num_counted += 1
            if len(shown) < MAX_WAITING_SHOWN:
                shown.append(_waiting_row(ledger, label, place, now))
    return {
        "num_waiting": num_waiting,
        "num_counted": num_counted,
        "by_reason": dict(reasons.most_common()),
        "first": shown,
    }


def telemetry_view(context: InspectContext) -> dict[str, Any]:
    """What the Observer itself does, costs and misses."""
    observer = context.observer
    cost, lost = observer.cost, observer.state.num_lost
    setting = context.control.in_force
    return {
        "num_facts": cost.num_facts,
        "num_failed_facts": cost.num_failed_facts,
        "num_view_errors": observer.state.views.num_errors,
        "num_lost_records": sum(lost.values()),
        "lost_by_role": dict(lost),
        "num_broken_laws": observer.state.invariants.num_broken,
        "cpu_seconds": cost.cpu_seconds,
        "drain_seconds": cost.drain_seconds,
        "max_slice_seconds": cost.max_slice_seconds,
        "last_fact_age_seconds": (time.monotonic_ns() - cost.last_fact_at) / NS if cost.last_fact_at else None,
        "num_failed_saves": cost.num_failed_saves,
        "resumed_at": cost.resumed_at or None,
        "resumed_from": cost.resumed_from or None,
        "exports": context.export_counts(),
        "num_listeners": len(context.hub.clients),
        "num_dropped_listeners": context.hub.num_dropped,
        "detail_level": setting.detail_level,
        "sample_rate": setting.sample_rate,
    }


def _request_counts(state: RunState) -> dict[str, int]:
    states = Counter(ledger.state for ledger in state.sequences.values())
    num_ended = states.pop("ended", 0)
    counts = {f"num_{word}": states[word] for word in ("submitted", "waiting", "running", "preempted")}
    return {"num_live": sum(states.values()), **counts, "num_ended": num_ended + len(state.ended)}


def _waiting_row(ledger: SequenceLedger, engine: str, place: int, now: int) -> dict[str, Any]:
    return {
        "request_id": ledger.request_id,
        "engine": engine,
        "place": place,
        "stage": ledger.stage,
        "reason": ledger.reason,
        "seconds": max(0, now - ledger.taken_at) / NS,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
    }


def _stall(state: RunState, label: str, now: int) -> str:
    """What to say of an engine that has work and does not move; empty for one that does, may not, or has none."""
    engine = state.engines[label]
    if engine.state != AWAKE or not (engine.num_running or engine.num_waiting):
        return ""
    moments = [engine.state_since] if engine.state_since else []
    moments += [engine.last_planned.schedule_ended_at] if engine.last_planned else []
    moments += [engine.last_answered.updated_at] if engine.last_answered else []
    moments += [ledger.taken_at for ledger in islice(engine.builder.roster.line.ledgers(), 1)]
    seconds = (now - max(moments)) / NS if moments else 0.0
    if seconds < STALL_SECONDS:
        return ""
    return f"Engine {label} has {_work(engine)} and has ended no step for {seconds:.0f} s."


def _work(engine: EngineState) -> str:
    return f"{engine.num_running} running and {engine.num_waiting} waiting"
