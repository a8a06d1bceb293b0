"""RunState: everything the Observer knows of a run now and in its last minutes, made from the facts."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from vllm_obs.telemetry.core_kinds import CORE_KINDS
from vllm_obs.telemetry.ended_sequences import EndedSequences
from vllm_obs.telemetry.engine_state import STEP_KINDS, EngineState
from vllm_obs.telemetry.inbox_wait import inbox_intervals
from vllm_obs.telemetry.invariants import Invariants
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.process_table import ProcessTable
from vllm_obs.telemetry.records import (
    EngineDescribed,
    HttpRequestEnded,
    LoopSampled,
    OutputsTaken,
    ProcessExited,
    ProcessPhase,
    ProcessReady,
    ProcessStarted,
    Record,
    RequestEnded,
    RequestSubmitted,
    TelemetrySet,
    WorkerStep,
)
from vllm_obs.telemetry.request_names import is_http_of, is_sequence_of, names_of
from vllm_obs.telemetry.run_snapshot import RunSnapshot, read_run_snapshot, restore_engine, snapshot_engine
from vllm_obs.telemetry.sequence_book import SequenceBook
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.step_history import StepHistory
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone, View
from vllm_obs.telemetry.view_fan import ViewFan

MAX_HTTP_REQUESTS = 10_000
MAX_PAST_ENGINES = 2
"""Beside those that left their label empty."""
MAX_LABELS = 64
MAX_API_SERVERS = 256
MAX_ROLES = 256
OTHER_ROLE = "other"


@runtime_checkable
class Resuming(Protocol):
    """A view that follows sequences from their submission on, and keeps nothing in a checkpoint itself."""

    def resumed(self, source: Source, ledger: SequenceLedger) -> None:
        """A sequence lives that this API server submitted before the checkpoint that the run goes on from."""


class RunState:
    """The run's live sequences, engines and processes, and the last of what is over; all of it bounded.

    Facts are applied one by one from one thread. Those of one source must come in its order; different sources
    may run ahead of one another.
    """

    def __init__(self) -> None:
        self.views = ViewFan()
        self.invariants = Invariants()
        self.book = SequenceBook(self.views, self.invariants)
        self.engines: dict[str, EngineState] = {}
        """The engine processes that live, by label; one that died is in `past_engines`, newest last."""
        self.past_engines: deque[EngineState] = deque(maxlen=MAX_PAST_ENGINES + MAX_LABELS)
        self.processes = ProcessTable()
        self.http: deque[HttpRequestEnded] = deque(maxlen=MAX_HTTP_REQUESTS)
        self.loops: dict[int, LoopSampled] = {}
        """The last sample of each API server's event loop, by client index."""
        self.telemetry: TelemetrySet | None = None
        self.num_lost: dict[str, int] = {}
        """Records overwritten unread, torn or never written, by the role of their writer."""
        self.recall: Callable[[Source], EngineDescribed | None] = lambda source: None
        """What an engine said of itself in a record that may have been lost; None where nobody knows."""
        self._resuming: list[Resuming] = []
        self._past_generations: deque[int] = deque(maxlen=MAX_PAST_ENGINES * 16)
        self._handlers = self._make_handlers()

    @property
    def sequences(self) -> dict[str, SequenceLedger]:
        """Live sequences by id: submitted, and not closed."""
        return self.book.live

    @property
    def ended(self) -> EndedSequences:
        """The last closed sequences."""
        return self.book.ended

    def add_view(self, view: View) -> None:
        """Tell this view what happens from now on."""
        self.views.add(view)
        if isinstance(view, Resuming):
            self._resuming.append(view)

    def apply(self, source: Source, fact: Fact) -> None:
        """Take the next fact of a source in."""
        if isinstance(fact, RecordsLost):
            self._lose(source, fact.num)
        elif isinstance(fact, SourceGone):
            self._part_with(source)
        else:
            kind = type(fact)
            if kind in STEP_KINDS:
                fact = self._shared(source, fact)
            self.views.record(source, fact)
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(source, fact)

    def tick(self, now: int) -> None:
        """Close what waits in vain. Only after a drain that left nothing unread, at about `now` (monotonic ns)."""
        for engine in self.engines.values():
            engine.tick(now)
        self.book.tick(now)

    def find(self, name: str) -> list[SequenceLedger]:
        """Every kept sequence with this id, HTTP request id, client's label or trace, newest submission first.

        Where none has it, what follows the prefix of a reply's id is looked for.
        """
        exact = self.book.live.get(name) or self.book.ended.get(name)
        if exact is not None:
            return [exact]
        kept = [*self.book.live.values(), *self.book.ended]
        for each in names_of(name):
            found = [ledger for ledger in kept if is_sequence_of(ledger.submitted, each)]
            if found:
                return sorted(found, key=lambda ledger: ledger.submitted.submitted_at, reverse=True)
        return []

    def find_http(self, name: str) -> list[HttpRequestEnded]:
        """Every kept HTTP request with this id, client's label or trace, oldest first; read as by `find`."""
        kept = ([ended for ended in self.http if is_http_of(ended, each)] for each in names_of(name))
        return next((found for found in kept if found), [])

    def intervals(self, ledger: SequenceLedger, now: int) -> list[Interval]:
        """Where a sequence's time went, up to `now` for one that lives."""
        engine = self.engines.get(ledger.engine)
        if engine is not None:
            engine.builder.roster.line.catch_up(ledger)
        intervals = ledger.intervals_until(now)
        steps = self.steps_of(ledger)
        if ledger.taken_at or steps is None:
            return intervals
        return inbox_intervals(intervals, ledger.submitted.submitted_at, steps)

    def steps_of(self, ledger: SequenceLedger) -> StepHistory | None:
        """The steps of the engine that a sequence is in or on its way to; None if that is not known."""
        engine = self.engines.get(ledger.engine)
        if engine is None:
            # One that was not taken, or whose engine died: which it is can be told while there is only one.
            known = self.engines or {past.label: past for past in self.past_engines}
            engine = next(iter(known.values())) if len(known) == 1 else None
        return engine.steps if engine is not None else None

    def state(self) -> RunSnapshot:
        """What a checkpoint keeps: the live sequences and where the engines stand; not what is over."""
        return RunSnapshot(
            engines=[snapshot_engine(engine) for engine in self.engines.values()],
            sequences=[*self.book.live.values(), *self.book.orphans.values()],
            loose_ends=self.book.loose_ends(),
            num_submitted=self.book.num_submitted,
            num_ended=self.book.num_ended,
            num_abandoned=self.book.num_abandoned,
            breaches=self.invariants.state(),
            processes=self.processes.state(),
            loops=list(self.loops.values()),
            telemetry=self.telemetry,
            num_lost=self.num_lost,
        )

    def restore(self, state: Any) -> None:
        """Go on from a decoded checkpoint; call it after adding the views and before any fact.

        ValueError if it is not one of ours. Block maps are empty until keyframes have filled them.
        """
        snapshot = read_run_snapshot(state)
        self.book.restore(snapshot)
        for engine in snapshot.engines:
            restored = EngineState(engine.source, self.book, self.views, self.invariants)
            restore_engine(restored, engine, self.book)
            self.engines[restored.label] = restored
        self._share_room()
        self.invariants.restore(snapshot.breaches)
        self.processes.restore(snapshot.processes)
        self.loops = {loop.client_index: loop for loop in snapshot.loops}
        self.telemetry = snapshot.telemetry
        self.num_lost = dict(snapshot.num_lost)
        self._tell_resumed()

    def _tell_resumed(self) -> None:
        for ledger in self.book.live.values():
            source = self.book.api_of(ledger)
            if source is not None:
                for view in self._resuming:
                    view.resumed(source, ledger)

    def _make_handlers(self) -> dict[type, Callable[[Source, Any], None]]:
        handlers: dict[type, Callable[[Source, Any], None]] = dict.fromkeys(CORE_KINDS, self._to_engine)
        handlers |= {
            RequestSubmitted: self.book.submit,
            RequestEnded: self.book.end,
            HttpRequestEnded: self._end_http,
            OutputsTaken: self._outputs_taken,
            WorkerStep: self._worker_step,
            LoopSampled: self._sample_loop,
            TelemetrySet: self._set_telemetry,
            ProcessStarted: lambda source, record: self.processes.started(record, source.host),
            ProcessPhase: self.processes.phase,
            ProcessReady: lambda source, record: self.processes.ready(record),
            ProcessExited: lambda source, record: self.processes.exited(record),
        }
        return handlers

    def _shared(self, source: Source, record: Record) -> Record:
        """A step's record with the columns of the one before: views tell by that at once what is the same."""
        engine = self.engines.get(source.engine or "0")
        if engine is None or engine.source.generation != source.generation:
            return record
        return engine.shared(record)

    def _to_engine(self, source: Source, record: Record) -> None:
        engine = self.engines.get(source.engine or "0")
        if engine is None or engine.source.generation != source.generation:
            if source.generation in self._past_generations:
                return
            engine = self._begin_engine(source)
        engine.apply(record)

    def _begin_engine(self, source: Source) -> EngineState:
        label = source.engine or "0"
        if label in self.engines:
            self._end_engine(self.engines[label])
        engine = self.engines[label] = EngineState(source, self.book, self.views, self.invariants)
        self._share_room()
        return engine

    def _share_room(self) -> None:
        for engine in self.engines.values():
            engine.steps.limit(len(self.engines))

    def _end_engine(self, engine: EngineState) -> None:
        del self.engines[engine.label]
        self._past_generations.append(engine.source.generation)
        engine.gone()
        self.past_engines.append(engine)
        self._trim_past()

    def _trim_past(self) -> None:
        """Let go of the oldest, but not of the last engine of a label that nobody has taken over."""
        newest = {engine.label: engine for engine in self.past_engines}
        for engine in list(self.past_engines)[:-MAX_PAST_ENGINES]:
            if engine.label in self.engines or newest[engine.label] is not engine:
                self.past_engines.remove(engine)

    def _end_http(self, source: Source, record: HttpRequestEnded) -> None:
        self.http.append(record)
        self.book.end_http(record)

    def _outputs_taken(self, source: Source, record: OutputsTaken) -> None:
        engine = self.engines.get(str(record.engine_index))
        if engine is not None:
            engine.add_outputs(record)

    def _worker_step(self, source: Source, record: WorkerStep) -> None:
        engine = self.engines.get(source.engine or "0")
        if engine is not None:
            engine.add_worker(record, is_elsewhere=bool(source.host))

    def _sample_loop(self, source: Source, record: LoopSampled) -> None:
        if record.client_index in self.loops or len(self.loops) < MAX_API_SERVERS:
            self.loops[record.client_index] = record

    def _set_telemetry(self, source: Source, record: TelemetrySet) -> None:
        self.telemetry = record

    def _lose(self, source: Source, num: int) -> None:
        role = source.role if source.role in self.num_lost or len(self.num_lost) < MAX_ROLES else OTHER_ROLE
        if num:
            self.num_lost[role] = self.num_lost.get(role, 0) + num
        self.views.lost(source, num)
        engine = self.engines.get(source.engine or "0")
        if engine is not None and engine.source.generation == source.generation:
            engine.lost()
        elif source.role.startswith("EngineCore") and source.generation not in self._past_generations:
            self._begin_engine(source).lost()
            self._recall(source)
        if not source.engine:
            self.book.lose_api(source)

    def _recall(self, source: Source) -> None:
        """Tell again what an engine said of itself, which everything about it rests on."""
        described = self.recall(source)
        if described is not None:
            self.apply(source, described)

    def _part_with(self, source: Source) -> None:
        self.processes.gone(source)
        for engine in list(self.engines.values()):
            if engine.source.generation == source.generation:
                self._end_engine(engine)
        if not source.engine:
            self._end_api(source)

    def _end_api(self, source: Source) -> None:
        for engine in self.engines.values():
            for ledger in engine.builder.roster.line.ledgers():
                engine.builder.roster.line.catch_up(ledger)
        engines = {engine.label: engine for engine in (*self.past_engines, *self.engines.values())}
        self.book.end_api(source, {label: engine.builder.over_at for label, engine in engines.items()})
