"""Exposition: the metrics as text, in the format the scraper asks for; which that is, the library says."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vllm_obs.telemetry.catalogue_row import Metric
from vllm_obs.telemetry.metric_series import Exemplar, Histogram, Value
from vllm_obs.telemetry.metric_store import Family, Series
from vllm_obs.telemetry.metrics import MetricsView

LARGE = 1e6
"""Numbers from here on are written with an exponent."""


class _Heads(NamedTuple):
    """What stands before the numbers of a series: one text for each of its lines. `bounds` are a histogram's.

    `shown` are its numbers as they were rendered last, and `text` what that gave.
    """

    bounds: tuple[float, ...]
    texts: tuple[str, ...]
    shown: object = None
    text: str = ""


class Exposition:
    """Renders one view, in the bytes that the library would write: it takes ten times as long.

    Most of a line never changes; it is kept from one scrape to the next.
    """

    def __init__(self, view: MetricsView) -> None:
        self._view = view
        self._titles: dict[tuple[str, bool], str] = {}
        self._heads: dict[str, dict[tuple[str, ...], _Heads]] = {}

    def render(self, accept: str, now: int) -> tuple[bytes, str]:
        """The body and its content type: OpenMetrics if the Accept header names it, else text 0.0.4.

        `now` is monotonic ns; all that was recorded before should have been applied.
        """
        # Imported here: it brings two HTTP servers along, and an Observer is there before it is scraped.
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.openmetrics import exposition as openmetrics

        self._view.refresh(now)
        encoder, content_type = choose_encoder(accept)
        is_open = encoder is openmetrics.generate_latest
        lines = [line for family in self._view.shown() for line in self._lines(family, is_open)]
        if is_open:
            lines.append("# EOF\n")
        return "".join(lines).encode(), content_type

    def _lines(self, family: Family, is_open: bool) -> Iterator[str]:
        metric = family.metric
        title = self._titles.get((metric.name, is_open))
        if title is None:
            title = self._titles[metric.name, is_open] = _title(metric, is_open)
        yield title
        before = self._heads.get(metric.name, {})
        self._heads[metric.name] = heads = {}
        for labels, series in family.series.items():
            bounds = series.bounds if isinstance(series, Histogram) else ()
            head = before.get(labels)
            if head is None or (head.bounds is not bounds and head.bounds != bounds):
                head = _Heads(bounds, tuple(_head_texts(metric, labels, bounds)))
            shown = _numbers(series, is_open)
            if head.shown != shown:
                text = "".join(_series_lines(metric, series, head.texts, is_open))
                head = _Heads(bounds, head.texts, shown, text)
            heads[labels] = head
            yield head.text


def _title(metric: Metric, is_open: bool) -> str:
    name, help_text = metric.name, metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if metric.kind == "counter":
        name = _counter_name(metric) if is_open else f"{_counter_name(metric)}_total"
    if is_open:
        help_text = help_text.replace('"', r"\"")
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind}\n"


def _counter_name(metric: Metric) -> str:
    return metric.name.removesuffix("_total")


def _head_texts(metric: Metric, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Iterator[str]:
    pairs = zip(metric.labels, labels, strict=True)
    # To Prometheus an empty label is none; tools that look for engines take an empty one for another engine.
    given = {name: value for name, value in pairs if value or name != "engine"}
    if metric.kind == "gauge":
        yield f"{metric.name}{_label_text(given)} "
    elif metric.kind == "counter":
        yield f"{_counter_name(metric)}_total{_label_text(given)} "
    else:
        if metric.kind == "histogram":
            for bound in (*bounds, float("inf")):
                yield f"{metric.name}_bucket{_label_text({**given, 'le': _number(bound)})} "
        yield f"{metric.name}_count{_label_text(given)} "
        yield f"{metric.name}_sum{_label_text(given)} "


def _label_text(labels: Mapping[str, str]) -> str:
    """Labels in the order of their names, as a sample has them; nothing where there are none."""
    pairs = ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _numbers(series: Series, is_open: bool) -> object:
    """All that the text of a series says beside its heads, to be compared."""
    if isinstance(series, Value):
        # As text, for which zeros of both signs and what is no number (unlike itself) are what they are.
        return is_open, repr(series.number), series.exemplar
    return is_open, repr(series.total), list(series.counts), dict(series.exemplars) if is_open else None


def _series_lines(metric: Metric, series: Series, heads: tuple[str, ...], is_open: bool) -> Iterator[str]:
    if isinstance(series, Value):
        exemplar = series.exemplar if is_open and metric.kind == "counter" else None
        yield f"{heads[0]}{_number(series.number)}{_exemplar_text(exemplar)}\n"
        return
    num_observed = 0
    for index, count in enumerate(series.counts):
        num_observed += count
        if metric.kind == "histogram":
            exemplar = series.exemplars.get(index) if is_open and series.exemplars else None
            yield f"{heads[index]}{_number(num_observed)}{_exemplar_text(exemplar)}\n"
    yield f"{heads[-2]}{_number(num_observed)}\n"
    yield f"{heads[-1]}{_number(series.total)}\n"


def _exemplar_text(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    return f' # {{trace_id="{exemplar.trace_id}"}} {_number(exemplar.value)} {exemplar.wall_seconds}'


def _number(number: float) -> str:
    if -LARGE < number < LARGE:
        return repr(float(number))
    from prometheus_client.utils import floatToGoString

    text: str = floatToGoString(number)  # type: ignore[no-untyped-call]
    return text
