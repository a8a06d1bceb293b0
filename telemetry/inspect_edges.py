"""The inspector's view of what lies between processes: what is on its way, and how long the last of it took."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.waiting_line import FIRST_LOOK

WINDOW_SECONDS = 10
MAX_STEPS = 5000
MAX_SEQUENCES = 5000
NS = 1e9

Row = dict[str, Any]


def edges_view(state: RunState, now: int) -> Row:
    """Delays between the run's processes over the last WINDOW_SECONDS before `now` (monotonic ns), in seconds.

    `untaken` are the sequences that were submitted and that no core has taken yet. An engine that died is as it
    was; of many steps and sequences the last MAX_STEPS and MAX_SEQUENCES are looked at.
    """
    since = now - WINDOW_SECONDS * 10**9
    engines = {engine.label: engine for engine in (*state.past_engines, *state.engines.values())}
    taken = list(_taken(state, since))
    return {
        "window_seconds": WINDOW_SECONDS,
        "untaken": _untaken(state, now),
        "engines": [_engine(engines[label], taken, since) for label in sorted(engines)],
        "servers": [
            {"client_index": loop.client_index, "num_queued_deltas": loop.num_queued_deltas}
            for _, loop in sorted(state.loops.items())
        ],
    }


def _untaken(state: RunState, now: int) -> Row:
    sent = [
        ledger.submitted.submitted_at
        for ledger in state.book.live.values()
        if not ledger.taken_at and ledger.ended is None and not ledger.is_closed
    ]
    return {"num": len(sent), "oldest_seconds": max(0, now - min(sent)) / NS if sent else None}


def _taken(state: RunState, since: int) -> Iterator[SequenceLedger]:
    """Those that a core took since then, and that were submitted by an API server that told of it."""
    ended = takewhile(lambda ledger: ledger.ended_at >= since, reversed(state.book.ended))
    for ledger in islice(chain(reversed(state.book.live.values()), ended), MAX_SEQUENCES):
        if ledger.taken_at >= since and not ledger.is_partial:
            yield ledger


def _engine(engine: EngineState, taken: Iterable[SequenceLedger], since: int) -> Row:
    own = [ledger for ledger in taken if ledger.engine == engine.label]
    steps = list(_steps(engine, since))
    return {
        "engine": engine.label,
        "num_steps_in_flight": sum(bool(step.planned.request_ids) for step in engine.open_steps.values()),
        "requests": _delays(ledger.taken_at - ledger.submitted.submitted_at for ledger in own),
        "requests_behind_a_step": _delays(_behind_a_step(ledger) for ledger in own),
        "ranks": _ranks(steps),
        "outputs": _outputs(steps),
    }


def _steps(engine: EngineState, since: int) -> Iterator[StepFacts]:
    newest = islice(reversed(engine.steps), MAX_STEPS)
    return takewhile(lambda step: step.planned.schedule_ended_at >= since, newest)


def _behind_a_step(ledger: SequenceLedger) -> int:
    """How long it lay in the inbox because the engine was inside of a step."""
    waits = (each for each in ledger.intervals if each.stage == "submit" and each.reason == FIRST_LOOK)
    return sum(wait.ended_at - wait.begun_at for wait in waits)


def _ranks(steps: Iterable[StepFacts]) -> list[Row]:
    """`plans`: from the plan's end until the rank had it; `answers`: from its last work until the core had all."""
    plans: defaultdict[int, list[int]] = defaultdict(list)
    answers: defaultdict[int, list[int]] = defaultdict(list)
    for step in steps:
        for record in step.workers:
            plans[record.rank].append(record.received_at - step.planned.schedule_ended_at)
            if step.answered is not None:
                answers[record.rank].append(step.answered.sampled_at - record.sampled_at)
    return [
        {"rank": rank, "plans": _delays(plans[rank]), "answers": _delays(answers[rank])} for rank in sorted(plans)
    ]


def _outputs(steps: Iterable[StepFacts]) -> list[Row]:
    """`taken`: from sending until the API server took them; `made`: until they were text for clients."""
    taken: defaultdict[int, list[int]] = defaultdict(list)
    made: defaultdict[int, list[int]] = defaultdict(list)
    for step in steps:
        for record in step.outputs:
            taken[record.client_index].append(record.taken_at - record.sent_at)
            made[record.client_index].append(record.processed_at - record.taken_at)
    return [
        {"client_index": client, "taken": _delays(taken[client]), "made": _delays(made[client])}
        for client in sorted(taken)
    ]


def _delays(lengths: Iterable[int]) -> Row:
    """Of nanoseconds; the quantiles are values that were seen (nearest rank), None where nothing was."""
    ordered = sorted(max(0, length) for length in lengths)
    num = len(ordered)
    return {
        "num": num,
        "p50_seconds": ordered[-(-num // 2) - 1] / NS if num else None,
        "p99_seconds": ordered[-(-99 * num // 100) - 1] / NS if num else None,
    }
