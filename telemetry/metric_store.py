"""MetricStore: the series of every metric in the catalogue, each family with closed label values and a bound."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_obs.telemetry.catalogue_row import ENGINE_LABELS, OTHER, TOKEN_BUCKETS, Metric, token_buckets
from vllm_obs.telemetry.metric_series import Histogram, Value

MAX_SERIES = 1024
"""Series of one metric; label values that would make more share one series, `other` in every label."""

DEFAULT_MAX_MODEL_LEN = 2048
"""Sizes token buckets where nobody said how long a sequence may be."""

_HAS_BUCKETS = ("histogram", "summary")

Series = Value | Histogram


class Family:
    """The series of one metric by their label values, in the order of the metric's labels."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.max_model_len = DEFAULT_MAX_MODEL_LEN
        self.series: dict[tuple[str, ...], Series] = {}
        self._closed = [metric.values.get(label) for label in metric.labels]

    def at(self, labels: Sequence[str]) -> Series:
        """The series with these label values, made when there is none."""
        found = self.series.get(tuple(labels))
        return found if found is not None else self._make(labels)

    def value(self, *labels: str) -> Value:
        """The counter or gauge with these label values."""
        series = self.at(labels)
        assert isinstance(series, Value), self.metric.name
        return series

    def histogram(self, *labels: str) -> Histogram:
        """The histogram or summary with these label values."""
        series = self.at(labels)
        assert isinstance(series, Histogram), self.metric.name
        return series

    def _make(self, labels: Sequence[str]) -> Series:
        key = tuple(_closed(values, label) for values, label in zip(self._closed, labels, strict=True))
        if key not in self.series and len(self.series) >= MAX_SERIES:
            key = (OTHER,) * len(key)
        if key not in self.series:
            self.series[key] = self._empty()
        return self.series[key]

    def _empty(self) -> Series:
        if self.metric.kind not in _HAS_BUCKETS:
            return Value()
        is_of_tokens = self.metric.buckets == TOKEN_BUCKETS
        return Histogram(token_buckets(self.max_model_len) if is_of_tokens else self.metric.buckets)


def _closed(values: tuple[str, ...] | None, label: str) -> str:
    return label if values is None or label in values else OTHER


class MetricStore:
    """All families by name. Metrics without labels, or with closed ones only, are at zero from the start."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.families = {metric.name: Family(metric) for metric in metrics}
        for family in self.families.values():
            if set(family.metric.labels) == set(family.metric.values) and len(family.metric.labels) < 2:
                self._begin(family)

    def value(self, name: str, *labels: str) -> Value:
        """A counter or gauge. KeyError for a name that is not in the catalogue."""
        return self.families[name].value(*labels)

    def histogram(self, name: str, *labels: str) -> Histogram:
        """A histogram or summary. KeyError for a name that is not in the catalogue."""
        return self.families[name].histogram(*labels)

    def state(self) -> Any:
        """Every series in plain values: [metric, label values, numbers]."""
        return [
            [name, list(labels), series.state()]
            for name, family in self.families.items()
            for labels, series in family.series.items()
        ]

    def restore(self, state: Any) -> None:
        """Go on from a `state`, less what is not in the catalogue any more. TypeError or ValueError if bad."""
        for name, labels, numbers in state:
            family = self.families.get(name)
            if family is not None and len(labels) == len(family.metric.labels):
                family.at(labels).restore(numbers)

    @staticmethod
    def _begin(family: Family) -> None:
        closed = [family.metric.values[label] for label in family.metric.labels]
        for labels in zip(*closed, strict=True) if closed else [()]:
            family.at(labels)


class EngineSeries:
    """One engine's series of every metric that has the engine's labels, at zero from the start.

    They are found by name, or by name and value where the metric has one label more; what is outside that label's
    closed set goes to `other`.
    """

    def __init__(self, store: MetricStore, engine: str, model_name: str, max_model_len: int) -> None:
        self.engine = engine
        self.labels = (engine, model_name)
        self.max_model_len = max_model_len
        self._store = store
        self._values: dict[tuple[str, str], Value] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        for family in store.families.values():
            if family.metric.labels[:2] == ENGINE_LABELS:
                family.max_model_len = max_model_len
                for further in family.metric.values.get(family.metric.labels[-1], ("",)):
                    self._bind(family, further)

    def value(self, name: str, further: str = "") -> Value:
        """A counter or gauge."""
        return self._values.get((name, further)) or self._store.value(name, *self.labels, further)

    def histogram(self, name: str, further: str = "") -> Histogram:
        """A histogram."""
        return self._histograms.get((name, further)) or self._store.histogram(name, *self.labels, further)

    def _bind(self, family: Family, further: str) -> None:
        series = family.at((*self.labels, further) if further else self.labels)
        if isinstance(series, Value):
            self._values[family.metric.name, further] = series
        else:
            self._histograms[family.metric.name, further] = series
