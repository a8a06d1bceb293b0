"""RunSnapshot: the part of the run's state that a checkpoint keeps, in plain typed values."""

from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_obs.telemetry.invariants import Breach
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.process_table import ProcessFacts
from vllm_obs.telemetry.records import EngineDescribed, LoopSampled, StepAnswered, StepPlanned, TelemetrySet
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import Source
from vllm_obs.telemetry.waiting_line import LineState

if TYPE_CHECKING:
    from vllm_obs.telemetry.engine_state import EngineState
    from vllm_obs.telemetry.sequence_book import SequenceBook


AWAKE = "awake"
"""The word of an engine that schedules; with any other it admits nobody."""


@dataclass(slots=True)
class EngineSnapshot:
    """Where one engine process stands. `in_core` maps its sequences to the numbers of their arrivals.

    `closed_in_core` are those of them whose ledgers are closed; `heard` is None as long as nothing was lost, else
    those that are known to live.
    """

    source: Source
    described: EngineDescribed | None
    state: str
    state_since: int
    in_core: dict[str, int]
    closed_in_core: list[SequenceLedger]
    heard: set[str] | None
    is_after_loss: bool
    first_sure_step: int | None
    by_priority: bool
    line: LineState
    answered_step: int
    over_at: int
    last_planned: StepPlanned | None
    last_answered: StepAnswered | None
    open_steps: list[StepFacts]
    doubtful_until: int = 0
    """Of the open steps those up to this one may have lost their answers."""


@dataclass(slots=True)
class LooseEnds:
    """What a sequence book has yet to learn of its sequences, and what it learned and has not told.

    `apis` are the API servers by generation, `lossy_apis` the generations of those that lost records.
    """

    without_core: set[str]
    held: dict[str, list[tuple[int | None, int]]]
    apis: dict[int, Source]
    lossy_apis: set[int]
    doubted: set[str]
    doubtful_until: int


@dataclass(slots=True)
class RunSnapshot:
    """The live state of a run; `sequences` holds live ledgers, orphans included."""

    engines: list[EngineSnapshot]
    sequences: list[SequenceLedger]
    loose_ends: LooseEnds
    num_submitted: int
    num_ended: int
    num_abandoned: int
    breaches: list[Breach]
    processes: list[ProcessFacts]
    loops: list[LoopSampled]
    telemetry: TelemetrySet | None
    num_lost: dict[str, int]


def read_run_snapshot(state: Any) -> RunSnapshot:
    """A snapshot from what a checkpoint decoded to; ValueError if it is none."""
    try:
        return msgspec.convert(state, RunSnapshot)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a snapshot of a run: {error}") from error


def snapshot_engine(engine: "EngineState") -> EngineSnapshot:
    """Where an engine stands."""
    builder = engine.builder
    roster = builder.roster
    return EngineSnapshot(
        source=engine.source,
        described=engine.described,
        state=engine.state,
        state_since=engine.state_since,
        in_core=roster.arrivals(),
        closed_in_core=[ledger for ledger in roster.ledgers.values() if ledger.is_closed],
        heard=roster.heard,
        is_after_loss=builder.is_after_loss,
        first_sure_step=engine.first_sure_step,
        by_priority=roster.by_priority,
        line=roster.line.state(),
        answered_step=builder.answered_step,
        over_at=builder.over_at,
        last_planned=engine.last_planned,
        last_answered=engine.last_answered,
        open_steps=list(engine.open_steps.values()),
        doubtful_until=max((step for step in engine.open_steps if step <= engine.steps.doubtful_until), default=0),
    )


def restore_engine(engine: "EngineState", snapshot: EngineSnapshot, book: "SequenceBook") -> None:
    """Put a new EngineState where the snapshot's stood; its block map has to catch up."""
    engine.described = snapshot.described
    if snapshot.described is not None:
        engine.blocks.resize(snapshot.described.num_blocks)
    engine.blocks.lost()
    engine.prefixes.begin(snapshot.last_planned.step + 1 if snapshot.last_planned is not None else 1)
    engine.state, engine.state_since = snapshot.state, snapshot.state_since
    engine.first_sure_step = snapshot.first_sure_step
    engine.last_planned, engine.last_answered = snapshot.last_planned, snapshot.last_answered
    for facts in snapshot.open_steps:
        engine.steps.add(facts)
        engine.open_steps[facts.step] = facts
    engine.steps.doubtful_until = snapshot.doubtful_until
    builder = engine.builder
    builder.answered_step, builder.over_at = snapshot.answered_step, snapshot.over_at
    builder.is_after_loss = snapshot.is_after_loss
    closed = {ledger.request_id: ledger for ledger in snapshot.closed_in_core}
    known = ChainMap(closed, book.live, book.orphans)
    ledgers = [known[request_id] for request_id in snapshot.in_core if request_id in known]
    arrivals = {ledger.request_id: snapshot.in_core[ledger.request_id] for ledger in ledgers}
    builder.roster.restore(ledgers, arrivals, snapshot.by_priority)
    builder.roster.heard = snapshot.heard
    builder.roster.line.restore(snapshot.line)
    if len(ledgers) < len(snapshot.in_core):
        builder.lost()
    if snapshot.state != AWAKE:
        builder.paused(snapshot.state_since)
