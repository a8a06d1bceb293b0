import pytest

from vllm_obs.telemetry.catalogue_row import ENGINE_LABELS, OTHER, TOKEN_BUCKETS, Metric
from vllm_obs.telemetry.metric_series import Exemplar, Histogram, Value
from vllm_obs.telemetry.metric_store import MAX_SERIES, EngineSeries, MetricStore

PLAIN = Metric("plain_total", "counter", "Plain.")
CLOSED = Metric("closed", "gauge", "Closed.", ("color",), values={"color": ("red", "green")})
OPEN = Metric("open_total", "counter", "Open.", ("path", "color"), values={"color": ("red",)})
ENGINE = Metric("engine_total", "counter", "Of an engine.", (*ENGINE_LABELS, "color"), values=CLOSED.values)
TOKENS = Metric("tokens", "histogram", "Tokens.", ENGINE_LABELS, TOKEN_BUCKETS)


def store() -> MetricStore:
    return MetricStore((PLAIN, CLOSED, OPEN, ENGINE, TOKENS))


def labels_of(store: MetricStore, name: str) -> list[tuple[str, ...]]:
    return list(store.families[name].series)


def test_closed_series_begin_at_zero() -> None:
    made = store()
    assert labels_of(made, "plain_total") == [()]
    assert labels_of(made, "closed") == [("red",), ("green",)]
    assert labels_of(made, "open_total") == []


def test_an_engines_series_begin_with_the_engine() -> None:
    made = store()
    series = EngineSeries(made, "3", "m", 20)
    assert labels_of(made, "engine_total") == [("3", "m", "red"), ("3", "m", "green")]
    assert series.histogram("tokens").bounds == (1, 2, 5, 10, 20)
    series.value("engine_total", "red").add(2)
    assert made.value("engine_total", "3", "m", "red").number == 2
    series.value("engine_total", "violet").add()
    assert made.value("engine_total", "3", "m", OTHER).number == 1


def test_values_outside_a_closed_set_share_a_series() -> None:
    made = store()
    for color in ("red", "violet", "brown"):
        made.value("open_total", "/", color).add()
    assert labels_of(made, "open_total") == [("/", "red"), ("/", OTHER)]
    assert made.value("open_total", "/", OTHER).number == 2


def test_a_metric_has_a_most_of_series() -> None:
    made = store()
    for number in range(MAX_SERIES + 10):
        made.value("open_total", f"/{number}", "red").add()
    assert len(labels_of(made, "open_total")) == MAX_SERIES + 1
    assert made.value("open_total", OTHER, OTHER).number == 10


def test_a_histogram_counts_up_to_and_with_each_bound() -> None:
    histogram = Histogram((1, 2))
    exemplar = Exemplar("0" * 32, 1.5, 7.0)
    for value in (0, 1, 2, 3):
        histogram.observe(value)
    histogram.observe(1.5, exemplar)
    assert (histogram.counts, histogram.total, histogram.num_observed) == ([2, 2, 1], 7.5, 5)
    assert histogram.exemplars == {1: exemplar}


def test_a_total_of_somebody_elses_never_goes_back() -> None:
    value = Value()
    value.raise_to(5)
    value.raise_to(3)
    assert value.number == 5


def test_a_state_goes_on_and_forgets_what_is_gone() -> None:
    made, resumed = store(), store()
    EngineSeries(made, "0", "m", 20).histogram("tokens").observe(7)
    made.value("open_total", "/", "red").add(3)
    resumed.restore([*made.state(), ["dropped_total", [], 5.0], ["plain_total", ["new label"], 5.0]])
    assert resumed.state() == made.state()


@pytest.mark.parametrize("state", [[["plain_total", [], "much"]], [["tokens", ["0", "m"], [[1.0], [1], 0.0]]], 5])
def test_a_broken_state_is_an_error(state: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        store().restore(state)
