"""Trend: the last minutes in equal spans of time: rates, latencies and levels, for sparklines."""

from collections import Counter, OrderedDict
from typing import Any, NamedTuple

from vllm_obs.telemetry.ddsketch import DDSketch
from vllm_obs.telemetry.quantiles import MAX_ENGINES, Quantiles
from vllm_obs.telemetry.rate_windows import NS, RateWindows
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView

SPAN_SECONDS = (1, 5, 10)
"""How long a span may be."""
NUM_SPANS = 60
MAX_SECONDS = 300
MEASURES = ("ttft", "itl", "e2e")
RATES = ("steps", "prompt_tokens", "output_tokens", "requests", "failed_requests", "http_requests")
MAX_KEPT = 2048


class Levels(NamedTuple):
    """What the last plan of a second saw, and the preemptions of that second."""

    num_running: int
    num_waiting: int
    num_active_blocks: int
    num_preempted: int


class Trend(BaseView):
    """A view that keeps the levels of each second; rates and latencies come from where they are counted anyway.

    A span in which nothing was seen has no latency (None), and no level where no step was planned: a gap.
    """

    def __init__(self, rates: RateWindows, quantiles: Quantiles) -> None:
        self._rates = rates
        self._quantiles = quantiles
        self._levels: dict[str, dict[int, Levels]] = {}
        self._over: OrderedDict[tuple[str, int, int], tuple[float | None, ...]] = OrderedDict()

    def step_closed(self, step: StepFacts) -> None:
        """Keep what it saw; it may come late."""
        planned = step.planned
        if step.engine not in self._levels and len(self._levels) >= MAX_ENGINES:
            return
        seconds = self._levels.setdefault(step.engine, {})
        second = planned.schedule_begun_at // NS
        before = seconds.get(second)
        num_preempted = len(planned.preempted_ids) + (before.num_preempted if before is not None else 0)
        seconds[second] = Levels(
            planned.num_running, planned.num_waiting, planned.num_active_blocks, num_preempted
        )
        if len(seconds) > MAX_SECONDS:
            del seconds[min(seconds)]

    def columns(self, now: int, span_seconds: int) -> dict[str, Any]:
        """NUM_SPANS spans at most, oldest first, all of them over by `now` (monotonic ns), in parallel columns.

        `begun_at` are monotonic ns. Rates are per second; latencies in seconds, over all engines.
        """
        end = now // NS // span_seconds
        num_spans = min(NUM_SPANS, MAX_SECONDS // span_seconds)
        spans = range(end - num_spans, end)
        return {
            "span_seconds": span_seconds,
            "begun_at": [span * span_seconds * NS for span in spans],
            "rates": self._rate_columns(spans, span_seconds),
            "quantiles": {measure: self._quantile_columns(measure, spans, span_seconds) for measure in MEASURES},
            "engines": {
                engine: _level_columns(seconds, spans, span_seconds) for engine, seconds in self._levels.items()
            },
        }

    def _rate_columns(self, spans: range, span_seconds: int) -> dict[str, list[float | None]]:
        totals = [self._rates.total(range(span * span_seconds, (span + 1) * span_seconds)) for span in spans]
        return {f"{name}_per_second": [_rate(total, name, span_seconds) for total in totals] for name in RATES}

    def _quantile_columns(self, measure: str, spans: range, span_seconds: int) -> dict[str, list[float | None]]:
        found = [self._quantiles_of(measure, span, span_seconds) for span in spans]
        return {name: [row[place] for row in found] for place, name in enumerate(("p50", "p95", "p99"))}

    def _quantiles_of(self, measure: str, span: int, span_seconds: int) -> tuple[float | None, ...]:
        """Of a span that is over: worked out once, except the newest, which late facts may still be counted in."""
        key = (measure, span, span_seconds)
        if key in self._over:
            return self._over[key]
        sketch = self._quantiles.between(measure, span * span_seconds, (span + 1) * span_seconds)
        row = _row(sketch)
        # Only when a later span has begun can nothing come to this one any more.
        if self._rates.newest_second >= (span + 2) * span_seconds:
            self._over[key] = row
            if len(self._over) > MAX_KEPT:
                self._over.popitem(last=False)
        return row


def _row(sketch: DDSketch) -> tuple[float | None, ...]:
    if not sketch.num_observed:
        return (None, None, None)
    return tuple(sketch.quantile(share) for share in (0.5, 0.95, 0.99))


def _rate(total: "Counter[str] | None", name: str, span_seconds: int) -> float | None:
    return None if total is None else total[name] / span_seconds


def _level_columns(seconds: dict[int, Levels], spans: range, span_seconds: int) -> dict[str, list[int | None]]:
    """The level at the end of each span, and the preemptions in all of it."""
    kept = [
        [seconds[second] for second in range(span * span_seconds, (span + 1) * span_seconds) if second in seconds]
        for span in spans
    ]
    levels = ("num_running", "num_waiting", "num_active_blocks")
    columns: dict[str, list[int | None]] = {
        name: [getattr(span[-1], name) if span else None for span in kept] for name in levels
    }
    columns["num_preempted"] = [sum(each.num_preempted for each in span) if span else None for span in kept]
    return columns
