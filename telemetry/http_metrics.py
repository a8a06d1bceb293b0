"""HttpMetrics: HTTP requests as prometheus-fastapi-instrumentator names and labels them, and errors by type."""

from vllm_obs.telemetry.catalogue_own import ERROR_TYPES
from vllm_obs.telemetry.catalogue_process import HTTP_METHODS, HTTP_STATUSES
from vllm_obs.telemetry.catalogue_row import OTHER
from vllm_obs.telemetry.genai_metrics import GenAiMetrics
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.records import HttpRequestEnded
from vllm_obs.telemetry.trace_exemplars import ExemplarClock

NO_ROUTE = "none"
"""The handler of a path that no route takes; the instrumentator's word."""

_UNCOUNTED = frozenset({"/metrics", "/load", "/version", "/server_info", "/livez", "/readyz", "/startupz"})
_UNCOUNTED_TREES = ("/health", "/ping")
"""vLLM leaves probes out by these words; the other probes are ours."""

_MIN_ERROR_STATUS = 400


class HttpMetrics:
    """Counts ended HTTP requests, over all API servers."""

    def __init__(self, store: MetricStore, genai: GenAiMetrics, clock: ExemplarClock) -> None:
        self._store = store
        self._genai = genai
        self._clock = clock

    def ended(self, record: HttpRequestEnded) -> None:
        """One HTTP request is over."""
        seconds = (record.ended_at - record.received_at) / 1e9
        if is_counted(record.handler):
            self._count(record, seconds)
            if record.status >= _MIN_ERROR_STATUS and record.reason:
                self.failed("http", record.reason)
        error = record.reason or str(record.status) if record.status >= _MIN_ERROR_STATUS else ""
        self._genai.ended(record.handler, seconds, error)

    def failed(self, where: str, kind: str) -> None:
        """Something failed, in an HTTP request, a sequence, a step or a frame; unknown kinds are `other`."""
        self._store.value("vllm_obs_errors_total", where, kind if kind in ERROR_TYPES else OTHER).add()

    def _count(self, record: HttpRequestEnded, seconds: float) -> None:
        store = self._store
        handler = NO_ROUTE if record.handler in (OTHER, "") else record.handler
        method = record.method if record.method in HTTP_METHODS else OTHER
        exemplar = self._clock.exemplar(record.trace_parent, seconds, record.ended_at)
        one = exemplar._replace(value=1.0) if exemplar is not None else None
        store.value("http_requests_total", handler, method, status_group(record.status)).add(1, one)
        store.histogram("http_request_size_bytes", handler).observe(record.num_request_bytes)
        store.histogram("http_response_size_bytes", handler).observe(record.num_response_bytes)
        store.histogram("http_request_duration_highr_seconds").observe(seconds, exemplar)
        store.histogram("http_request_duration_seconds", handler, method).observe(seconds, exemplar)


def is_counted(handler: str) -> bool:
    """Whether requests of this route are in the `http_…` metrics: probes and scrapes are not."""
    return handler not in _UNCOUNTED and not handler.startswith(_UNCOUNTED_TREES)


def status_group(status: int) -> str:
    """2xx for 200, and so on."""
    index = status // 100 - 1
    return HTTP_STATUSES[index] if 0 <= index < len(HTTP_STATUSES) else OTHER
