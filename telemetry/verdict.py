"""Verdict: why a run is as slow as it is, in one sentence with its evidence, over the last seconds or minutes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from vllm_obs.telemetry.binding_limit import BEFORE_BLOCKS
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.floor import work_of
from vllm_obs.telemetry.floor_ratios import FloorRatios
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.quantiles import MAX_ENGINES
from vllm_obs.telemetry.rate_windows import NS, WINDOWS, end_of_second
from vllm_obs.telemetry.records import (
    EngineDescribed,
    EngineStateChanged,
    LoopSampled,
    OutputsTaken,
    Record,
    RequestReleased,
    StallBegun,
    StallEnded,
    StepPlanned,
)
from vllm_obs.telemetry.run_snapshot import AWAKE
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.under_way import step_under_way
from vllm_obs.telemetry.verdict_findings import findings_of, joined
from vllm_obs.telemetry.verdict_first_tokens import first_token_sums
from vllm_obs.telemetry.verdict_metrics import count_limit, show_findings
from vllm_obs.telemetry.verdict_names import METRIC_WINDOW, NO_ENGINE
from vllm_obs.telemetry.verdict_seconds import Seconds
from vllm_obs.telemetry.verdict_stalls import MIN_OUTPUT_WAIT_MS
from vllm_obs.telemetry.verdict_tally import LOOP_LAG, LOOP_SAMPLES, STALL_FACTOR, STALL_NS, StepTally
from vllm_obs.telemetry.verdict_window import Finding, WindowFacts
from vllm_obs.telemetry.verdict_words import verdict_document
from vllm_obs.telemetry.view import BaseView, Source

MAX_LOSSES = 64
MAX_STANDING = 64
"""Stalls that last, and as many that are over."""
OPEN_STALL_NS = 1_000_000_000
FIRST_ENGINE = "0"
MS = 1_000_000


class Loss(NamedTuple):
    """So many records of a process were lost at about this moment (monotonic ns)."""

    role: str
    num: int
    lost_at: int


@dataclass
class EngineVerdict:
    """What is counted of one engine."""

    tally: StepTally
    seconds: Seconds = field(default_factory=Seconds)
    paused_since: int = 0
    late_until: int = 0
    """Up to when tokens have waited for the API server: those that wait at once share the time."""


class Verdict(BaseView):
    """A view that counts by the second what findings rest on. `floors` must be told of a step before this is.

    Windows are of whole seconds, in the records' own time; an Observer that was started again begins new ones, of
    engines that the floors know.
    """

    def __init__(
        self, state: RunState, floors: FloorRatios, is_live: bool = True, store: MetricStore | None = None
    ) -> None:
        self._state = state
        self._floors = floors
        self._is_live = is_live
        self._store = store
        self.states: Callable[[int], list[Finding]] = lambda now: []
        """What holds at a moment (monotonic ns) whatever the engines' steps tell, the weightiest first."""
        self._engines: dict[str, EngineVerdict] = {}
        self._losses: deque[Loss] = deque(maxlen=MAX_LOSSES)
        self._standing: dict[tuple[str, int], StallBegun] = {}
        self._over: deque[tuple[StallBegun, int]] = deque(maxlen=MAX_STANDING)
        self._first_at = 0
        self._newest_at = 0
        self._handlers: dict[type[Record], Callable[[Source, Any], None]] = {
            EngineDescribed: self._described,
            EngineStateChanged: self._state_changed,
            RequestReleased: self._released,
            StepPlanned: lambda source, record: self._note_head(source.engine or FIRST_ENGINE),
            OutputsTaken: self._outputs_taken,
            LoopSampled: self._loop_sampled,
            StallBegun: self._stall_begun,
            StallEnded: self._stall_ended,
        }
        self.record_kinds = self._handlers.keys()

    def record(self, source: Source, record: Record) -> None:
        """Count what is not a step."""
        handle = self._handlers.get(type(record))
        if handle is not None:
            handle(source, record)

    def step_closed(self, step: StepFacts) -> None:
        """Count a step that ran something."""
        if not step.is_over or not step.planned.request_ids:
            return
        self._note_head(step.engine)
        engine = self._engine(step.engine)
        described, expected_ns = engine.tally.described, None
        # What its like take is asked only of a step that may have stood still.
        if described is not None and step.worker_ns > STALL_NS:
            expected_ns = self._floors.expected_ns(step.engine, work_of(step.planned, described))
        begun_at = engine.tally.begun_at(step)
        sums = engine.tally.add(step, expected_ns)
        engine.seconds.spread(begun_at, step.over_at, sums)
        if self._store is not None and described is not None:
            count_limit(self._store, described, step.limit, sums["ns"] / NS)
        self._see(step.planned.schedule_begun_at)
        self._see(step.over_at)

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """Count how late it is."""
        self._engine(ledger.engine).seconds.add(sampled_at, first_token_sums(ledger, sampled_at))

    def lost(self, source: Source, num: int) -> None:
        """What is missing cannot be judged."""
        if num:
            self._losses.append(Loss(source.role, num, self._newest_at))

    def findings(self, window: str, now: int) -> list[Finding]:
        """What holds over a window that ends now, joined over the engines. KeyError for a name that is none."""
        return self._found(self.facts(window, now), self.states(now))

    def show(self, now: int) -> None:
        """Set the gauges to what holds now: a stall that is over is told of in the document only."""
        if self._store is not None:
            found = self.findings(METRIC_WINDOW, now)
            show_findings(self._store, {finding.name for finding in found if not finding.is_past})

    def document(self, window: str, now: int, is_past: bool = False) -> dict[str, Any]:
        """The whole verdict in plain values. KeyError for a window that is not in WINDOWS.

        Of a window that `is_past` what stands still or waits at this moment is no part.
        """
        facts = self.facts(window, now)
        if is_past:
            facts = [replace(each, standing=(), open_seconds=0.0, num_waiting=0, num_running=0) for each in facts]
        found = self._found(facts, [] if is_past else self.states(now))
        losses = [loss for loss in self._losses if now >= loss.lost_at > now - WINDOWS[window] * NS]
        return verdict_document(window, facts, found, losses)

    def _found(self, facts: list[WindowFacts], states: list[Finding]) -> list[Finding]:
        if self._is_live and any(state.name in NO_ENGINE for state in states):
            return states
        return states + joined([finding for each in facts for finding in findings_of(each)])

    def facts(self, window: str, now: int) -> list[WindowFacts]:
        """The figures of every engine over a window that ends now (monotonic ns)."""
        until = (now if self._is_live else end_of_second(now)) // NS * NS
        since = until - WINDOWS[window] * NS
        seconds = max(0, until - max(since, self._first_at)) / NS if self._first_at else 0.0
        return [self._facts_of(label, (since, until), seconds, now) for label in sorted(self._engines)]

    def _facts_of(self, label: str, span: tuple[int, int], seconds: float, now: int) -> WindowFacts:
        engine, (since, until) = self._engines[label], span
        sums = engine.seconds.total(since, until)
        if engine.paused_since:
            sums["paused_ns"] += max(0, until - max(since, engine.paused_since))
        live = self._state.engines.get(label)
        standing = tuple(stall for stall in self._standing.values() if stall.engine == label)
        stood_seconds = max([max(0, now - stall.stuck_at) / NS for stall in standing], default=0.0)
        return WindowFacts(
            engine=label,
            described=engine.tally.described,
            seconds=seconds,
            sums=sums,
            ratios=self._floors.sketch(since - 1, label),
            stalls=tuple(
                stall for stall in engine.tally.stalls if stall.ended_at > since and stall.begun_at < now
            ),
            standing=standing,
            noticed=tuple(
                stall
                for stall, ended_at in (*self._over, *((stall, until) for stall in standing))
                if stall.engine == label and ended_at > since and stall.stuck_at < until
            ),
            open_seconds=max(stood_seconds, self._open_seconds(live, now) if live is not None else 0.0),
            num_waiting=live.num_waiting if live is not None else 0,
            num_running=live.num_running if live is not None else 0,
        )

    def _open_seconds(self, engine: EngineState, now: int) -> float:
        """How long the step in progress has gone beyond what it needs at best, where that is far too long."""
        step = step_under_way(engine) if engine.open_steps else None
        if step is None or engine.described is None:
            return 0.0
        expected_ns = self._floors.expected_ns(engine.label, work_of(step.planned, engine.described))
        open_ns = now - step.planned.schedule_ended_at
        if expected_ns is None or open_ns < max(OPEN_STALL_NS, STALL_FACTOR * expected_ns):
            return 0.0
        return (open_ns - expected_ns) / NS

    def _note_head(self, label: str) -> None:
        """Look who waits first after the last plan: before the next one, or when a step is over."""
        live = self._state.engines.get(label)
        if live is not None and live.last_planned is not None and live.last_planned.head_reason in BEFORE_BLOCKS:
            self._engine(label).tally.note_head(live.last_planned, live.builder.roster.line.head)

    def _described(self, source: Source, record: EngineDescribed) -> None:
        self._engine(source.engine).tally.described = record
        self._see(record.described_at)

    def _released(self, source: Source, record: RequestReleased) -> None:
        self._engine(source.engine).tally.released(record.request_id)

    def _outputs_taken(self, source: Source, record: OutputsTaken) -> None:
        engine, waited_ns = self._engine(str(record.engine_index)), max(0, record.processed_at - record.sent_at)
        sums = {"outputs": 1, "outputs_ns": waited_ns}
        if waited_ns >= MIN_OUTPUT_WAIT_MS * MS:
            sums |= {"late_outputs": 1, "late_outputs_ns": waited_ns}
            begun_at = max(record.sent_at, engine.late_until)
            engine.late_until = max(engine.late_until, record.processed_at)
            late_ns = max(0, record.processed_at - begun_at)
            engine.seconds.spread(begun_at, record.processed_at, {"late_ns": late_ns})
        engine.seconds.add(record.taken_at, sums)

    def _loop_sampled(self, source: Source, record: LoopSampled) -> None:
        client = record.client_index
        sums = {f"{LOOP_SAMPLES}{client}": 1, f"{LOOP_LAG}{client}": record.max_lag_seconds}
        for engine in self._engines.values():
            engine.seconds.add(record.sampled_at, sums)

    def _state_changed(self, source: Source, record: EngineStateChanged) -> None:
        engine = self._engine(source.engine)
        if engine.paused_since:
            length = record.changed_at - engine.paused_since
            engine.seconds.spread(engine.paused_since, record.changed_at, {"paused_ns": max(0, length)})
        engine.paused_since = 0 if record.state == AWAKE else record.changed_at
        self._see(record.changed_at)

    def _stall_begun(self, source: Source, record: StallBegun) -> None:
        self._standing[record.role, record.pid] = record
        if len(self._standing) > MAX_STANDING:
            del self._standing[next(iter(self._standing))]

    def _stall_ended(self, source: Source, record: StallEnded) -> None:
        stall = self._standing.pop((record.role, record.pid), None)
        if stall is not None:
            self._over.append((stall, record.ended_at))

    def _see(self, moment: int) -> None:
        self._first_at = min(self._first_at or moment, moment)
        self._newest_at = max(self._newest_at, moment)

    def _engine(self, label: str) -> EngineVerdict:
        label = label or FIRST_ENGINE
        found = self._engines.get(label)
        if found is not None:
            return found
        if len(self._engines) >= MAX_ENGINES:
            return next(iter(self._engines.values()))
        tally = StepTally(self._find, self._floors.described(label))
        return self._engines.setdefault(label, EngineVerdict(tally))

    def _find(self, request_id: str) -> SequenceLedger | None:
        return self._state.book.known(request_id)
