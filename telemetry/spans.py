"""SpansView: turns finished facts into OpenTelemetry spans, as many as the detail level and the budget allow."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import (
    EngineDescribed,
    HttpRequestEnded,
    ProcessPhase,
    ProcessReady,
    ProcessStarted,
    Record,
    RequestSubmitted,
    StepAnswered,
    StepFailed,
    StepPlanned,
    TelemetrySet,
    WorkerStep,
)
from vllm_obs.telemetry.request_spans import RequestSpans, RequestTree
from vllm_obs.telemetry.span import Process, Span
from vllm_obs.telemetry.span_budget import SpanBudget
from vllm_obs.telemetry.span_names import SpanNames
from vllm_obs.telemetry.startup_spans import StartupSpans
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_links import TracedRows
from vllm_obs.telemetry.step_spans import StepSpans
from vllm_obs.telemetry.view import BaseView, Source

NO_TRACES, REQUESTS, STAGES, STEPS = range(4)
"""Detail levels; each has what the one before has."""

SPANS_PER_SECOND = 500.0
"""About 0.7 % of a core with 32 rows a step, encoding included; past it steps go first."""

MAX_PROCESSES = 1024

_LEFT_BY_STEPS = 0.5
_LEFT_BY_STAGES = 0.25


class SpanSink(Protocol):
    """Where spans go. `offer` never blocks and never raises; False says that the span was dropped."""

    def offer(self, span: Span) -> bool:
        """Take a finished span."""


class SpansView(BaseView):
    """A view of the Observer's. `run` is the run directory's name, from which all ids are derived.

    An Observer that goes on from a checkpoint makes the same spans of what is in flight, with links to its own
    steps only.
    """

    def __init__(
        self,
        run: str,
        sink: SpanSink,
        names: SpanNames | None = None,
        detail_level: int = STEPS,
        spans_per_second: float = SPANS_PER_SECOND,
    ) -> None:
        self.detail_level = detail_level
        self._sink = sink
        self._budget = SpanBudget(spans_per_second)
        self._engines: dict[str, Process] = {}
        self._workers: dict[tuple[str, int], Process] = {}
        self._requests = RequestSpans(run, names or SpanNames(), self._engines)
        self._rows = TracedRows(run)
        self._steps = StepSpans(self._engines, self._workers)
        self._startup = StartupSpans(run)
        self._now = 0
        self.num_spans = 0
        self._apply: dict[type[Record], Callable[[Source, Any], None]] = {
            ProcessStarted: self._startup.started,
            ProcessPhase: self._startup.phase,
            ProcessReady: self._process_ready,
            EngineDescribed: self._engine_described,
            RequestSubmitted: self._submitted,
            HttpRequestEnded: self._http_ended,
            StepPlanned: self._planned,
            StepAnswered: self._answered,
            StepFailed: self._rows.failed,
            WorkerStep: self._worker_step,
            TelemetrySet: self._telemetry_set,
        }
        self.record_kinds = self._apply.keys()

    @property
    def num_spans_over_budget(self) -> int:
        """Spans that were not made because there were too many a second."""
        return self._budget.num_refused

    @property
    def num_links_left_out(self) -> int:
        """Links from requests to steps that were not kept because there were too many."""
        return self._rows.num_links_left_out

    def record(self, source: Source, record: Record) -> None:
        """Take the facts that spans are made of."""
        apply = self._apply.get(type(record))
        if apply is not None and (self.detail_level or type(record) is TelemetrySet):
            apply(source, record)

    def resumed(self, source: Source, ledger: SequenceLedger) -> None:
        """A sequence that was submitted before the checkpoint goes on."""
        if self.detail_level:
            self._follow(ledger.submitted)
            self._offer_trees(self._requests.resumed(source, ledger))

    def sequence_closed(self, ledger: SequenceLedger) -> None:
        """A sequence's stages are final."""
        self._now = max(self._now, ledger.ended_at)
        self._offer_trees(self._requests.sequence_closed(ledger, self._rows.end(ledger.request_id)))

    def step_closed(self, step: StepFacts) -> None:
        """A step's parts are final."""
        links = self._rows.step_links(step.engine, step.step)
        if links is None or self.detail_level < STEPS:
            return
        num_spans = 4 + 4 * len(step.workers)
        if self._budget.take(num_spans, self._now, _LEFT_BY_STEPS):
            self._offer(self._steps.of(step, links))

    def tick(self, now: int) -> None:
        """Let go of requests for which facts are missing (now and then, monotonic ns)."""
        self._now = max(self._now, now)
        self._offer_trees(self._requests.overdue(now))

    def _submitted(self, source: Source, submitted: RequestSubmitted) -> None:
        self._follow(submitted)
        self._offer_trees(self._requests.submitted(source, submitted))

    def _follow(self, submitted: RequestSubmitted) -> None:
        if self.detail_level >= STEPS:
            self._rows.begin(submitted)

    def _http_ended(self, source: Source, http: HttpRequestEnded) -> None:
        self._now = max(self._now, http.ended_at)
        self._offer_trees(self._requests.http_ended(source, http))

    def _planned(self, source: Source, planned: StepPlanned) -> None:
        if source.engine not in self._engines:
            self._engines[source.engine] = Process(source.role, source.pid, host=source.host)
        self._rows.planned(source, planned)

    def _answered(self, source: Source, answered: StepAnswered) -> None:
        self._now = max(self._now, answered.updated_at)
        self._rows.answered(source, answered)

    def _engine_described(self, source: Source, described: EngineDescribed) -> None:
        self._rows.described(source, described)
        if len(self._engines) < MAX_PROCESSES:
            self._engines[source.engine] = Process(source.role, source.pid, host=source.host)

    def _worker_step(self, source: Source, worker: WorkerStep) -> None:
        key = (source.engine, worker.rank)
        known = self._workers.get(key)
        if (known is None or known[:2] != source[:2]) and len(self._workers) < MAX_PROCESSES:
            self._workers[key] = Process(source.role, source.pid, str(worker.rank), source.host)

    def _process_ready(self, source: Source, ready: ProcessReady) -> None:
        self._offer(self._startup.ready(source, ready))

    def _telemetry_set(self, source: Source, telemetry: TelemetrySet) -> None:
        self.detail_level = telemetry.detail_level

    def _offer_trees(self, trees: Iterator[RequestTree]) -> None:
        for tree in trees:
            if self.detail_level >= STAGES and self._budget.take(len(tree.stages), self._now, _LEFT_BY_STAGES):
                self._offer(tree.stages)
            if self.detail_level >= REQUESTS and self._budget.take(len(tree.requests), self._now):
                self._offer(tree.requests)

    def _offer(self, spans: Iterable[Span]) -> None:
        offer = self._sink.offer
        for span in spans:
            self.num_spans += 1
            offer(span)
