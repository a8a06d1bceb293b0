"""ObserverViews: the metrics and spans of one Observer, and what connects them; here exporters are loaded."""

from collections.abc import Iterable, Mapping

from vllm_obs.telemetry.cache_trend import CacheTrend
from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_metrics import show_accounts
from vllm_obs.telemetry.exposition import Exposition
from vllm_obs.telemetry.floor_ratios import FloorRatios
from vllm_obs.telemetry.incident_log import IncidentLog
from vllm_obs.telemetry.metrics import MetricsView
from vllm_obs.telemetry.metrics_ports import MetricsPorts
from vllm_obs.telemetry.metrics_settings import MetricsSettings
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.otlp_encoding import Histogram
from vllm_obs.telemetry.otlp_settings import OtlpFlags
from vllm_obs.telemetry.outside_counts import OutsidePorts
from vllm_obs.telemetry.slo import Slo
from vllm_obs.telemetry.tracing import TracedRun, Tracing, open_tracing
from vllm_obs.telemetry.trend import Trend
from vllm_obs.telemetry.utilisation import Utilisation
from vllm_obs.telemetry.verdict import Verdict
from vllm_obs.telemetry.watchdog_metrics import StallMetrics

CLOSE_SECONDS = 1.5


class ObserverViews:
    """Makes the views and adds them to the Observer. Nothing is exported from a recording (no `variables`)."""

    def __init__(
        self, observer: Observer, config: ObserverConfig, root_pid: int, variables: Mapping[str, str]
    ) -> None:
        self._observer = observer
        self._tracing: Tracing | None = None
        self._num_unopened = {"spans": 0, "metrics": 0}
        settings = MetricsSettings(
            model_name=next(iter(config.served_model_names), config.model_name),
            version=config.version,
            root_pid=root_pid,
            enable_mfu_metrics=config.enable_mfu_metrics,
            show_hidden_metrics=config.show_hidden_metrics,
            disable_log_stats=config.disable_log_stats,
            wall_offset_ns=observer.wall_offset,
            **({"max_model_len": config.max_model_len} if config.max_model_len else {}),
        )
        self.metrics = MetricsView(settings, MetricsPorts(observer.state.engines.get, self._outside_ports()))
        self._exposition = Exposition(self.metrics)
        self.economics = Economics(observer.state.engines.get, config.accounts)
        self.slo = Slo(config.slo_targets)
        observer.add_views([self.economics, self.slo])
        observer.add_views([self.metrics, StallMetrics(self.metrics.store)])
        self.floors = FloorRatios(self.metrics.store)
        self.verdict = Verdict(observer.state, self.floors, observer.is_live, self.metrics.store)
        self.utilisation = Utilisation(self.floors.described)
        observer.add_views([self.floors, self.verdict, self.utilisation])
        self.trend = Trend(observer.rates, self.metrics.quantiles)
        self.cache_trend = CacheTrend()
        observer.add_views([self.trend, self.cache_trend])
        self.incidents = IncidentLog(self.metrics.store)
        observer.add_views([self.incidents])
        if observer.is_live:
            self._open_tracing(config, variables)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The body and content type of /metrics, true now."""
        now = self._observer.now()
        show_accounts(self.economics, self.metrics.store)
        self.slo.show(self.metrics.store, now)
        self.verdict.show(now)
        return self._exposition.render(accept, now)

    def tick(self, now: int) -> None:
        """About once a second."""
        self.economics.tick(now)
        if self._tracing is not None:
            self._tracing.tick(now, self._histograms)

    def close(self, now: int) -> None:
        """Send what is left, in CLOSE_SECONDS at most."""
        if self._tracing is not None:
            self._tracing.close(now, self._histograms, CLOSE_SECONDS)

    def export_counts(self) -> dict[str, int]:
        """What became of spans, for people; empty where none are exported."""
        return self._tracing.counts()._asdict() if self._tracing is not None else {}

    def _open_tracing(self, config: ObserverConfig, variables: Mapping[str, str]) -> None:
        run = TracedRun(self._observer.run, config.version, config.detail_level, self._observer.wall_offset)
        flags = OtlpFlags(config.otlp_endpoint, config.otlp_protocol, config.otlp_headers, config.otlp_insecure)
        self._tracing = open_tracing(run, flags, variables, self._count_unopened)
        if self._tracing is not None:
            self._observer.add_views([self._tracing.view])

    def _count_unopened(self, signal: str) -> None:
        self._num_unopened[signal] += 1

    def _exporter_failures(self) -> dict[str, float]:
        failed = self._counted({"spans": "num_trace_failures", "metrics": "num_metric_failures"})
        return {signal: num + failed.get(signal, 0.0) for signal, num in self._num_unopened.items()}

    def _outside_ports(self) -> OutsidePorts:
        return OutsidePorts(
            exporter_failures=self._exporter_failures,
            dropped_spans=lambda: self._tracing.dropped_spans() if self._tracing is not None else {},
            over_budget_spans=lambda: self._counted({"": "num_spans_over_budget"}),
            left_out_links=lambda: self._counted({"": "num_links_left_out"}),
            violations=lambda: self._observer.state.invariants.counts(),
            failed_saves=lambda: {"": float(self._observer.cost.num_failed_saves)},
            cpu_seconds=lambda: {"": self._observer.cost.cpu_seconds},
        )

    def _counted(self, names: dict[str, str]) -> dict[str, float]:
        counts = self.export_counts()
        return {label: float(counts[name]) for label, name in names.items() if name in counts}

    def _histograms(self) -> Iterable[Histogram]:
        return self.metrics.genai_histograms()
