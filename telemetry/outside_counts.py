"""OutsideCounts: totals that other parts of the Observer keep, shown as counters that never go back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vllm_obs.telemetry.metric_store import MetricStore

Totals = Mapping[str, float]


def _none() -> Totals:
    return {}


@dataclass(frozen=True)
class OutsidePorts:
    """Where the totals come from, by label value (empty for a metric without labels)."""

    exporter_failures: Callable[[], Totals] = _none
    """By signal: spans, metrics."""
    dropped_spans: Callable[[], Totals] = _none
    """By the reason."""
    over_budget_spans: Callable[[], Totals] = _none
    left_out_links: Callable[[], Totals] = _none
    violations: Callable[[], Totals] = _none
    """By the name of the conservation law; the names are a closed set."""
    failed_saves: Callable[[], Totals] = _none
    cpu_seconds: Callable[[], Totals] = _none

    def by_metric(self) -> dict[str, Callable[[], Totals]]:
        """The port of each metric."""
        return {
            "vllm_obs_exporter_failures_total": self.exporter_failures,
            "vllm_obs_dropped_spans_total": self.dropped_spans,
            "vllm_obs_over_budget_spans_total": self.over_budget_spans,
            "vllm_obs_left_out_span_links_total": self.left_out_links,
            "vllm_obs_invariant_violations_total": self.violations,
            "vllm_obs_checkpoint_failures_total": self.failed_saves,
            "vllm_obs_telemetry_cpu_seconds_total": self.cpu_seconds,
        }


_RESUMED = ("vllm_obs_invariant_violations_total", "vllm_obs_telemetry_cpu_seconds_total")
"""Their totals are in the Observer's checkpoint as well; all others begin at 0 with each Observer."""


@dataclass
class OutsideCounts:
    """Adds what the totals grew by. A total that is lower than before began anew."""

    store: MetricStore
    ports: OutsidePorts
    _seen: dict[tuple[str, str], float] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read all ports."""
        for name, port in self.ports.by_metric().items():
            for label, total in port().items():
                self._grow(name, label, total)

    def _grow(self, name: str, label: str, total: float) -> None:
        series = self.store.value(name, *filter(None, [label]))
        seen = self._seen.get((name, label))
        if seen is None:
            seen = series.number if name in _RESUMED else 0
        series.add(total - seen if total >= seen else total)
        self._seen[name, label] = total
