"""docs/metrics.md, made from the catalogue: `python -m vllm_obs.telemetry.catalogue_page > docs/metrics.md`."""

from collections.abc import Iterable

from vllm_obs.telemetry.catalogue_own import OWN_METRICS
from vllm_obs.telemetry.catalogue_process import HTTP_METRICS, PROCESS_METRICS
from vllm_obs.telemetry.catalogue_row import TOKEN_BUCKETS, Metric
from vllm_obs.telemetry.catalogue_vllm import VLLM_METRICS

_INTRODUCTION = """\
# Metrics

Made by `python -m vllm_obs.telemetry.catalogue_page`; do not edit.

`GET /metrics` on the API server's port is answered by the Observer, from the same records as traces and the
inspector, after it has read all of them. Text 0.0.4 is the default; a scraper that accepts
`application/openmetrics-text` gets OpenMetrics, with the trace id of a sampled request as an exemplar.

`request_…` metrics count sequences (n of them for a request with n), `http_…` count HTTP requests. Levels are
those at the scrape. Label values come from closed sets; whatever is not in one is `other`. Series begin at zero
when an engine is ready and never go back while the server runs."""

_SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("vLLM's", VLLM_METRICS),
    ("Ours", OWN_METRICS),
    ("HTTP", HTTP_METRICS),
    ("The root process", PROCESS_METRICS),
)
_MAX_VALUES = 14
"""Longer sets of label values are not spelled out."""


def metrics_page() -> str:
    """The whole page."""
    return "\n\n".join([_INTRODUCTION, *(_section(title, metrics) for title, metrics in _SECTIONS)]) + "\n"


def _section(title: str, metrics: Iterable[Metric]) -> str:
    head = ["| name | type | meaning | labels | buckets | shown |", "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join([f"## {title}", "", *head, *map(_row, metrics)])


def _row(metric: Metric) -> str:
    shown = metric.when if metric.when == "always" else f"`{metric.when}`"
    cells = [f"`{metric.name}`", metric.kind, metric.help, _labels(metric), _buckets(metric), shown]
    return f"| {' | '.join(cells)} |"


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{label}`{_values(metric.values.get(label, ()))}" for label in metric.labels)


def _values(values: tuple[str, ...]) -> str:
    return f" ({', '.join(values)})" if 0 < len(values) <= _MAX_VALUES else ""


def _buckets(metric: Metric) -> str:
    if metric.buckets == TOKEN_BUCKETS:
        return "1, 2, 5, 10, … max_model_len"
    return ", ".join(f"{bound:g}" for bound in metric.buckets)


if __name__ == "__main__":
    print(metrics_page(), end="")
