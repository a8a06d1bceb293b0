"""MetricsView: every metric of the catalogue, fed from the facts as they are applied."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.catalogue_own import ERROR_TYPES, HARMLESS_FRAMES
from vllm_obs.telemetry.catalogue_vllm import REJECTIONS
from vllm_obs.telemetry.engine_metrics import EngineMetrics
from vllm_obs.telemetry.genai_metrics import GenAiMetrics
from vllm_obs.telemetry.http_metrics import HttpMetrics
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.metric_series import Value
from vllm_obs.telemetry.metric_store import EngineSeries, Family, MetricStore
from vllm_obs.telemetry.metrics_ports import MetricsPorts
from vllm_obs.telemetry.metrics_settings import MetricsSettings
from vllm_obs.telemetry.otlp_encoding import Histogram as OtlpHistogram
from vllm_obs.telemetry.outside_counts import OutsideCounts
from vllm_obs.telemetry.process_metrics import ProcessMetrics, split_role
from vllm_obs.telemetry.process_roles import CORE, engine_of_role
from vllm_obs.telemetry.quantiles import MAX_ENGINES, Quantiles
from vllm_obs.telemetry.queue_metrics import QueueMetrics
from vllm_obs.telemetry.records import (
    EngineDescribed,
    EngineRestarted,
    EngineStateChanged,
    FrameDropped,
    GarbageSampled,
    HttpRequestEnded,
    LoopSampled,
    OutputsTaken,
    ProcessExited,
    ProcessPhase,
    ProcessStarted,
    Record,
    RequestEnded,
    RequestKeyframe,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
    TelemetrySet,
)
from vllm_obs.telemetry.sequence_metrics import SequenceMetrics
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.trace_exemplars import ExemplarClock
from vllm_obs.telemetry.view import BaseView, Source
from vllm_obs.telemetry.watchdog_metrics import begin_stalls

STATE_VERSION = 4
FIRST_ENGINE = "0"
MAX_SOURCES = 1024
REJECTED_BY = {"overloaded": REJECTIONS[0], "too_many_queued_tokens": REJECTIONS[1]}

ELSEWHERE = -1
"""The pid of an engine on another host, whose own means nothing here."""

CORE_METHODS: dict[type[Record], Callable[[EngineMetrics, Any], None]] = {
    EngineDescribed: EngineMetrics.described,
    EngineStateChanged: EngineMetrics.state_changed,
    RequestTaken: EngineMetrics.taken,
    RequestReleased: EngineMetrics.released,
    RequestKeyframe: EngineMetrics.keyframe,
    StepPlanned: EngineMetrics.planned,
    StepAnswered: EngineMetrics.answered,
    StepFailed: EngineMetrics.failed,
}
"""Which records are an engine's own, and who counts them."""


class MetricsView(BaseView):
    """Counts as facts are applied; `refresh` before a scrape sets the levels."""

    def __init__(self, settings: MetricsSettings, ports: MetricsPorts | None = None) -> None:
        ports = ports or MetricsPorts()
        self.settings = settings
        self.store = MetricStore(CATALOGUE)
        self.quantiles = Quantiles()
        clock = ExemplarClock(settings.wall_offset_ns)
        self._find_engine = ports.find_engine
        self._reader = ports.processes
        self._genai = GenAiMetrics(settings.model_name)
        self._http = HttpMetrics(self.store, self._genai, clock)
        self._sequences = SequenceMetrics(self.quantiles, self._genai, clock)
        self._processes = ProcessMetrics(self.store, settings.root_pid, ports.processes, ports.memory)
        self._queues = QueueMetrics(self.store)
        self._outside = OutsideCounts(self.store, ports.outside)
        self._engines: dict[str, EngineMetrics] = {}
        self._num_records: dict[int, Value] = {}
        self._handlers = self._record_handlers()
        self._begin()

    def record(self, source: Source, record: Record) -> None:
        """Count any record."""
        num_records = self._num_records.get(source.generation) or self._new_source(source)
        num_records.number += 1
        kind = type(record)
        count = CORE_METHODS.get(kind)
        if count is not None:
            engine = self._engine_of(source, record)
            if engine.follow(source.generation, ELSEWHERE if source.host else source.pid):
                count(engine, record)
        handle = self._handlers.get(kind)
        if handle is not None:
            handle(source, record)

    def first_token(self, ledger: SequenceLedger, sampled_at: int) -> None:
        """Count a sequence's first token."""
        self._sequences.first_token(self._engine(ledger.engine).series, ledger, sampled_at)

    def tokens(self, ledgers: Sequence[SequenceLedger], gap_ns: int, sampled_at: int) -> None:
        """Count a token for each of these."""
        self._sequences.tokens(self._engine(ledgers[0].engine).series, len(ledgers), gap_ns, sampled_at)

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """Count a sequence. The core may run it still, if its client left during a long step."""
        self._queues.ended(ledger.request_id)
        self._sequences.closed(self._engine(ledger.engine).series, ledger)

    def step_closed(self, step: StepFacts) -> None:
        """Count a step's phases."""
        self._engine(step.engine).step_closed(step)

    def lost(self, source: Source, num: int) -> None:
        """Count records that nobody will see."""
        self.store.value("vllm_obs_recorder_lost_records_total", *split_role(source.role)).add(num)

    def refresh(self, now: int) -> None:
        """Set every level to what is true now (monotonic ns)."""
        if self.settings.root_pid:
            self._bury()
        for engine in self._engines.values():
            engine.refresh(now)
        engines = self._engines.values()
        self._queues.refresh(
            sum(engine.num_waiting for engine in engines),
            sum(engine.num_steps_in_flight for engine in engines),
        )
        self._processes.refresh()
        self._outside.refresh()

    def shown(self) -> Iterator[Family]:
        """The families to expose, in order; those without series are there too."""
        return (family for family in self.store.families.values() if self.settings.shows(family.metric))

    def genai_histograms(self) -> list[OtlpHistogram]:
        """The GenAI conventions' server histograms, cumulative since this view was made, for an OTLP exporter."""
        return self._genai.histograms()

    def state(self) -> Any:
        """All that counts, in plain values, to go on from after a restart."""
        engines = [
            [label, *engine.series.labels[1:], engine.series.max_model_len, engine.state()]
            for label, engine in self._engines.items()
        ]
        return [STATE_VERSION, self.store.state(), engines, [part.state() for part in self._parts()]]

    def restore(self, state: Any) -> None:
        """Go on from a `state`; what is then applied must follow what it had seen.

        Raises TypeError or ValueError if it is none of this version's: use a new view then, this one is spoilt.
        """
        version, store, engines, parts = state
        if version != STATE_VERSION:
            raise ValueError(f"metrics of version {version}; this version reads {STATE_VERSION}")
        self.store.restore(store)
        for label, model_name, max_model_len, engine_state in engines:
            self._make_engine(label, model_name, max_model_len).restore(engine_state)
        for part, part_state in zip(self._parts(), parts, strict=True):
            part.restore(part_state)
        self._begin()

    def _parts(self) -> tuple[Any, ...]:
        return (self.quantiles, self._sequences, self._processes, self._queues)

    def _begin(self) -> None:
        self.store.value("vllm_obs_build_info", self.settings.version).set(1)
        # From the start: of a series that begins at 1 nobody sees the first error.
        self.store.value("vllm_obs_errors_total", "step", "internal_error")
        for kind in ERROR_TYPES:
            self.store.value("vllm_obs_errors_total", "http", kind)

    def _record_handlers(self) -> dict[type[Record], Callable[[Source, Any], None]]:
        return {
            RequestSubmitted: self._submitted,
            RequestTaken: lambda _source, record: self._queues.arrived(record.request_id),
            RequestEnded: self._ended,
            OutputsTaken: self._outputs_taken,
            HttpRequestEnded: self._http_ended,
            LoopSampled: self._queues.sampled,
            GarbageSampled: self._processes.garbage,
            TelemetrySet: self._telemetry_set,
            ProcessStarted: self._process_started,
            ProcessPhase: self._process_phase,
            ProcessExited: self._process_exited,
            EngineRestarted: self._engine_restarted,
            StepFailed: lambda _source, _record: self._http.failed("step", "internal_error"),
            FrameDropped: lambda _source, record: self._frame_dropped(record),
        }

    def _frame_dropped(self, record: FrameDropped) -> None:
        self.store.value("vllm_obs_bad_frames_total", record.reason).add()
        if record.reason not in HARMLESS_FRAMES:
            self._http.failed("frame", record.reason)

    def _submitted(self, _source: Source, record: RequestSubmitted) -> None:
        is_taken = any(record.request_id in engine.live for engine in self._engines.values())
        self._queues.submitted(record.request_id, is_taken)

    def _ended(self, _source: Source, record: RequestEnded) -> None:
        self._queues.ended(record.request_id)
        if record.finish_reason == "error":
            self._http.failed("sequence", record.error)

    def _outputs_taken(self, _source: Source, record: OutputsTaken) -> None:
        self._engine(str(record.engine_index)).observe_delay("output", record.taken_at - record.sent_at)

    def _http_ended(self, _source: Source, record: HttpRequestEnded) -> None:
        self._http.ended(record)
        if bound := REJECTED_BY.get(record.reason):
            self.store.value("vllm:admission_rejections_total", self._model_name(), bound).add()

    def _telemetry_set(self, _source: Source, record: TelemetrySet) -> None:
        self.store.value("vllm_obs_telemetry_detail_level").set(record.detail_level)
        self.store.value("vllm_obs_trace_sample_ratio").set(record.sample_rate)

    def _process_started(self, _source: Source, record: ProcessStarted) -> None:
        self.store.value("vllm_obs_process_starts_total", *split_role(record.role)).add()

    def _process_phase(self, _source: Source, record: ProcessPhase) -> None:
        seconds = (record.ended_at - record.begun_at) / 1e9
        self.store.value("vllm_obs_startup_seconds", *split_role(record.role), record.phase).set(seconds)

    def _process_exited(self, _source: Source, record: ProcessExited) -> None:
        engine = self._engines.get(engine_of_role(record.role))
        if record.role.startswith(CORE) and engine is not None and engine.pid == record.pid:
            engine.die()
        self._queues.forget(record.pid)

    def _engine_restarted(self, _source: Source, record: EngineRestarted) -> None:
        self.store.value("vllm_obs_engine_restarts_total", record.engine).add()

    def _bury(self) -> None:
        """Processes may end without anybody recording it."""
        for label, engine in self._engines.items():
            if self._is_gone(label, engine.pid):
                engine.die()
        for pid in self._queues.server_pids():
            if self._reader.is_gone(pid):
                self._queues.forget(pid)

    def _is_gone(self, label: str, pid: int) -> bool:
        return self._find_engine(label) is None if pid == ELSEWHERE else bool(pid) and self._reader.is_gone(pid)

    def _new_source(self, source: Source) -> Value:
        if not source.host:
            self._processes.seen(source.role, source.pid)
        if len(self._num_records) >= MAX_SOURCES:
            del self._num_records[next(iter(self._num_records))]
        counter = self.store.value("vllm_obs_recorder_records_total", *split_role(source.role))
        self.store.value("vllm_obs_recorder_lost_records_total", *split_role(source.role))
        return self._num_records.setdefault(source.generation, counter)

    def _model_name(self) -> str:
        first = next(iter(self._engines.values()), None)
        return first.series.labels[1] if first is not None else self.settings.model_name

    def _engine_of(self, source: Source, record: Record) -> EngineMetrics:
        """The engine that wrote a record; its description comes first and says how its series look."""
        label = source.engine or FIRST_ENGINE
        known = self._engines.get(label)
        if known is not None:
            return known
        if isinstance(record, EngineDescribed) and record.model_names:
            return self._make_engine(label, record.model_names[0], record.max_model_len)
        return self._engine(label)

    def _engine(self, label: str) -> EngineMetrics:
        engine = self._engines.get(label or FIRST_ENGINE)
        if engine is not None:
            return engine
        return self._make_engine(label or FIRST_ENGINE, self.settings.model_name, self.settings.max_model_len)

    def _make_engine(self, label: str, model_name: str, max_model_len: int) -> EngineMetrics:
        if len(self._engines) >= MAX_ENGINES:
            return next(iter(self._engines.values()))
        series = EngineSeries(self.store, label, model_name, max_model_len)
        for reason in REJECTIONS:
            self.store.value("vllm:admission_rejections_total", model_name, reason)
        begin_stalls(self.store, label)
        self.store.value("vllm_obs_engine_restarts_total", label)
        engine = EngineMetrics(series, self.store, self.quantiles, self._find_engine)
        return self._engines.setdefault(label, engine)
