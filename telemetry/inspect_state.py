"""The inspector's first answer: is it well, what runs, who waits and why, how fast, and what telemetry lost."""

import time
from collections import Counter
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.rate_windows import end_of_second
from vllm_obs.telemetry.records import EngineRestarted, ProcessStarted
from vllm_obs.telemetry.run_health import (
    DEATH_SECONDS,
    Health,
    deaths_of,
    given_up_engines,
    health_of,
    with_incident,
)
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.under_way import under_way_view
from vllm_obs.telemetry.waiting_line import WaitingLine

MAX_WAITING_SHOWN = 20
MAX_RESTARTS_SHOWN = 8
DEAD = "dead"
"""The state of an engine whose process is gone; the others are its own words, but for one that is given up."""
GIVEN_UP = "given up"
"""It died too often: none is started in its place for now."""
PLAN_LEVELS = ("num_running", "num_waiting", "num_active_blocks", "num_cached_blocks", "num_free_blocks")
"""What a plan saw: of an engine that has died since, how it was."""
NS = 1e9


def run_view(context: InspectContext) -> dict[str, Any]:
    """All of `/inspect/state`."""
    observer = context.observer
    state, now = observer.state, observer.now()
    stalls = context.watchdog.current() if context.watchdog is not None else []
    health = health_of(observer, now, context.config.run_dir if observer.is_live else None, stalls)
    # Of a time that stands still the second that was not over would never be counted.
    rates_at = now if observer.is_live else end_of_second(now)
    starts = [record.started_at for _, record in observer.facts if isinstance(record, ProcessStarted)]
    return {
        "run": observer.run,
        "clock": {"monotonic_at": now, "wall_at": observer.wall_offset + now},
        "uptime_seconds": max(0, now - min(starts, default=now)) / NS,
        "health": _with_incident(health, context, now)._asdict(),
        "last_incident": last_incident(context),
        "deaths": [death._asdict() for death in deaths_of(observer, now)],
        "stalls": stalls_view(context),
        "restarts": restarts_view(observer),
        "models": models_of(context),
        "engines": [engine_view(observer, engine, now, rates_at) for engine in engines_of(state)],
        "requests": _request_counts(state),
        "throughput": observer.rates.rates(rates_at),
        "refused": observer.rates.refused(rates_at),
        "slo": context.slo.summary(rates_at),
        "waiting": waiting_view(state, now),
        "api_servers": [loop._asdict() for _, loop in sorted(state.loops.items())],
        "telemetry": telemetry_view(context),
    }


def last_incident(context: InspectContext) -> dict[str, Any] | None:
    """The newest incident of the run, None where there was none."""
    last = context.incidents.last if context.incidents is not None else None
    return last._asdict() if last is not None else None


def _with_incident(health: Health, context: InspectContext, now: int) -> Health:
    """How a live run is, with what went wrong in its last minutes."""
    last = context.incidents.last if context.incidents is not None else None
    if last is None or not context.observer.is_live or now - last.happened_at > DEATH_SECONDS * NS:
        return health
    return with_incident(health, last, context.stall_log.all(), now)


def stalls_view(context: InspectContext) -> dict[str, Any]:
    """Who stands still now, and the stalls there were, oldest first; those of a recording that did not end too."""
    watchdog = context.watchdog
    current = watchdog.current() if watchdog is not None else []
    return {
        "current": [stall._asdict() for stall in current],
        "states": watchdog.states() if watchdog is not None else {},
        "past": [
            {**stall.begun._asdict(), "ended_at": stall.ended_at or None}
            for stall in context.stall_log.all()
            if stall.begun not in current
        ],
    }


def restarts_view(observer: Observer) -> list[dict[str, Any]]:
    """The last engines that took the place of one that had died, oldest first."""
    restarts = [record for _, record in observer.facts if isinstance(record, EngineRestarted)]
    return [record._asdict() for record in restarts[-MAX_RESTARTS_SHOWN:]]


def models_of(context: InspectContext) -> list[str]:
    """The names the model is, or was last, served under."""
    state = context.observer.state
    for engine in [*state.engines.values(), *reversed(state.past_engines)]:
        if engine.described is not None:
            return list(engine.described.model_names)
    return list(context.config.served_model_names)


def engines_of(state: RunState) -> list[EngineState]:
    """The engines by label: those that live, and the last of those that left their label empty."""
    engines = {engine.label: engine for engine in state.past_engines} | state.engines
    return [engines[label] for label in sorted(engines)]


def engine_view(observer: Observer, engine: EngineState, now: int, rates_at: int) -> dict[str, Any]:
    """One engine: its queues, blocks and loop, the loop's shares up to `rates_at`."""
    planned, answered, line = engine.last_planned, engine.last_answered, engine.builder.roster.line
    last_at = answered.updated_at if answered else None
    return {
        "engine": engine.label,
        "state": _word(observer, engine),
        "num_running": engine.num_running,
        "num_waiting": engine.num_waiting,
        "last_step": engine.steps.last.step if engine.steps.last else 0,
        "last_step_age_seconds": max(0, now - last_at) / NS if last_at else None,
        "under_way": under_way_view(engine),
        "head_reason": planned.head_reason if planned else "",
        "by_reason": {reason or "unknown": num for reason, num in line.by_reason().most_common()},
        "last_plan": {name: getattr(planned, name) for name in PLAN_LEVELS} if planned else None,
        "blocks": _blocks_of(engine),
        "loop": observer.rates.loop_shares(rates_at, engine.label),
    }


def _word(observer: Observer, engine: EngineState) -> str:
    if not engine.is_gone:
        return engine.state
    return GIVEN_UP if engine.label in given_up_engines(observer) else DEAD


def _blocks_of(engine: EngineState) -> dict[str, Any]:
    """Blocks as they are now; as the last plan saw them where the map has lost records (`is_exact` says which)."""
    described, levels = engine.described, engine.block_levels
    num_blocks = described.num_blocks if described else 0
    return {
        "num_blocks": num_blocks,
        **levels._asdict(),
        "usage": levels.num_active / num_blocks if num_blocks else 0.0,
        "block_size": described.block_size if described else 0,
        "is_exact": engine.blocks.is_exact,
    }


def waiting_view(state: RunState, now: int) -> dict[str, Any]:
    """Who waits, the head of each line first, and how many for which reason: `num_counted`, all of them."""
    reasons: Counter[str] = Counter()
    shown: list[dict[str, Any]] = []
    for label in sorted(state.engines):
        line = state.engines[label].builder.roster.line
        reasons += line.by_reason()
        first = line.waiters()[: MAX_WAITING_SHOWN - len(shown)]
        shown += [_waiting_row(line, waiter.ledger, label, place, now) for place, waiter in enumerate(first)]
    return {
        "num_waiting": reasons.total(),
        "num_counted": reasons.total(),
        "by_reason": {reason or "unknown": num for reason, num in reasons.most_common()},
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
        "caveat": observer.caveat,
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


def _waiting_row(line: WaitingLine, ledger: SequenceLedger, engine: str, place: int, now: int) -> dict[str, Any]:
    return {
        "request_id": ledger.request_id,
        "engine": engine,
        "place": place,
        "stage": ledger.stage,
        "reason": line.reason_of(ledger),
        "seconds": max(0, now - ledger.taken_at) / NS,
        "num_prompt_tokens": ledger.submitted.num_prompt_tokens,
    }
