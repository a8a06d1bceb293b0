"""Tracing: all that exports over OTLP, opened from flags and environment, and closed in time."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from vllm_obs.telemetry.otlp_export import SHUTDOWN_SECONDS, ExportLimits, SpanExporter
from vllm_obs.telemetry.otlp_metrics import Collect, MetricsExporter, interval_seconds
from vllm_obs.telemetry.otlp_settings import OtlpFlags, OtlpSettingsError, otlp_settings
from vllm_obs.telemetry.otlp_transport import open_transport
from vllm_obs.telemetry.span_names import OPT_IN, SpanNames
from vllm_obs.telemetry.span_resources import SpanResources
from vllm_obs.telemetry.spans import STEPS, SpansView

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True)
class TracedRun:
    """The run whose spans are exported; `name` is its run directory's, `wall_offset` turns moments into Unix ns.

    Keep the offset for the whole run, over a restart of the Observer too: then a stepped wall clock moves nothing.
    """

    name: str
    version: str = ""
    detail_level: int = STEPS
    wall_offset: int = 0


class ExportCounts(NamedTuple):
    """What became of spans and requests so far, for the metrics."""

    num_exported_spans: int = 0
    num_dropped_spans: int = 0
    num_spans_over_budget: int = 0
    num_queued_spans: int = 0
    num_trace_failures: int = 0
    num_metric_failures: int = 0
    num_links_left_out: int = 0


class Tracing:
    """The spans' view with its exporter, and that of the metrics if they have an endpoint."""

    def __init__(self, view: SpansView, spans: SpanExporter, metrics: MetricsExporter | None) -> None:
        self.view = view
        self._spans = spans
        self._metrics = metrics

    def counts(self) -> ExportCounts:
        """The counters; cheap and never blocking."""
        return ExportCounts(
            num_exported_spans=self._spans.num_exported_spans,
            num_dropped_spans=self._spans.num_dropped_spans,
            num_spans_over_budget=self.view.num_spans_over_budget,
            num_queued_spans=self._spans.num_queued_spans,
            num_trace_failures=self._spans.num_failures,
            num_metric_failures=self._metrics.num_failures if self._metrics is not None else 0,
            num_links_left_out=self.view.num_links_left_out,
        )

    def dropped_spans(self) -> Mapping[str, int]:
        """Spans that were made and not exported, by the reason."""
        return self._spans.dropped_spans

    def tick(self, now: int, collect: Collect) -> None:
        """What is to be done now and then, at `now` (monotonic ns); `collect` gives the histograms to send."""
        self.view.tick(now)
        if self._metrics is not None:
            self._metrics.tick(now, collect)

    def close(self, now: int, collect: Collect, timeout_seconds: float = SHUTDOWN_SECONDS) -> None:
        """Send the rest, in this time at most."""
        closes_at = time.monotonic() + timeout_seconds
        if self._metrics is not None:
            self._metrics.tick(now, collect, is_last=True)
        self._spans.close(timeout_seconds * 3 / 4)
        if self._metrics is not None:
            self._metrics.close(max(0.1, closes_at - time.monotonic()))


def open_tracing(
    run: TracedRun,
    flags: OtlpFlags,
    variables: Mapping[str, str],
    on_failure: Callable[[str], None] = lambda signal: None,
) -> Tracing | None:
    """Tracing, if an endpoint is named by the flags or in the environment's `variables`.

    What cannot work is logged and left out, and `on_failure` is told the signal (spans or metrics): telemetry may
    fail, serving may not.
    """
    opened = _attempt("spans", lambda: _open_spans(run, flags, variables), on_failure)
    if opened is None:
        return None
    return Tracing(*opened, _attempt("metrics", lambda: _open_metrics(run, flags, variables), on_failure))


def _attempt(signal: str, open_exporter: Callable[[], _T | None], on_failure: Callable[[str], None]) -> _T | None:
    try:
        return open_exporter()
    except (OtlpSettingsError, ImportError) as error:
        logger.error("no %s are exported over OTLP: %s", signal, error)
    except Exception:
        # The environment is anybody's: what else it may hold that a library chokes on cannot be foreseen.
        logger.exception("no %s are exported over OTLP", signal)
    on_failure(signal)
    return None


def _open_spans(
    run: TracedRun, flags: OtlpFlags, variables: Mapping[str, str]
) -> tuple[SpansView, SpanExporter] | None:
    settings = otlp_settings("traces", flags, variables)
    if settings is None:
        return None
    limits = ExportLimits.of(variables)
    resources = SpanResources(run.name, run.version)
    spans = SpanExporter(open_transport("traces", settings), settings, resources, run.wall_offset, limits)
    return SpansView(run.name, spans, SpanNames(variables.get(OPT_IN, "")), run.detail_level), spans


def _open_metrics(run: TracedRun, flags: OtlpFlags, variables: Mapping[str, str]) -> MetricsExporter | None:
    settings = otlp_settings("metrics", flags, variables)
    if settings is None:
        return None
    seconds = interval_seconds(variables)
    resources = SpanResources(run.name, run.version)
    return MetricsExporter(open_transport("metrics", settings), settings, resources, run.wall_offset, seconds)
