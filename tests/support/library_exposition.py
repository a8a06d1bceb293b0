"""The metrics as text as prometheus_client writes it, to hold our own against."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as LibraryExemplar
from prometheus_client.utils import floatToGoString

from vllm_obs.telemetry.metric_series import Exemplar, Histogram, Value
from vllm_obs.telemetry.metric_store import Family
from vllm_obs.telemetry.metrics import MetricsView

Bucket = tuple[str, float] | tuple[str, float, LibraryExemplar]


def library_text(view: MetricsView, accept: str) -> bytes:
    """What a view shows, as the library writes it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(view))
    encode, _ = choose_encoder(accept)
    return encode(registry)


class ViewCollector(Collector):
    """What the library asks for metric families."""

    def __init__(self, view: MetricsView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Every family that is shown."""
        return map(library_family, self._view.shown())


def library_family(family: Family) -> Metric:
    """A family of ours in the library's terms; what is of no engine has no label of one."""
    metric = _MAKERS[family.metric.kind](family)
    for sample in metric.samples:
        if sample.labels.get("engine") == "":
            del sample.labels["engine"]
    return metric


def _counter(family: Family) -> Metric:
    metric = CounterMetricFamily(family.metric.name, family.metric.help, labels=family.metric.labels)
    for labels, series in family.series.items():
        assert isinstance(series, Value)
        metric.add_metric(labels, series.number, exemplar=_library_exemplar(series.exemplar))
    return metric


def _gauge(family: Family) -> Metric:
    metric = GaugeMetricFamily(family.metric.name, family.metric.help, labels=family.metric.labels)
    for labels, series in family.series.items():
        assert isinstance(series, Value)
        metric.add_metric(labels, series.number)
    return metric


def _histogram(family: Family) -> Metric:
    metric = HistogramMetricFamily(family.metric.name, family.metric.help, labels=family.metric.labels)
    for labels, series in family.series.items():
        assert isinstance(series, Histogram)
        metric.add_metric(labels, list(_buckets(series)), series.total)
    return metric


def _summary(family: Family) -> Metric:
    metric = SummaryMetricFamily(family.metric.name, family.metric.help, labels=family.metric.labels)
    for labels, series in family.series.items():
        assert isinstance(series, Histogram)
        metric.add_metric(labels, series.num_observed, series.total)
    return metric


_MAKERS = {"counter": _counter, "gauge": _gauge, "histogram": _histogram, "summary": _summary}


def _buckets(series: Histogram) -> Iterator[Bucket]:
    cumulative = 0
    for index, bound in enumerate((*series.bounds, float("inf"))):
        cumulative += series.counts[index]
        exemplar = _library_exemplar(series.exemplars.get(index))
        name: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
        yield (name, cumulative) if exemplar is None else (name, cumulative, exemplar)


def _library_exemplar(exemplar: Exemplar | None) -> LibraryExemplar | None:
    if exemplar is None:
        return None
    return LibraryExemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.wall_seconds)
