"""TokenMetrics: what one more token adds to an engine's series, in well under a microsecond."""

from bisect import bisect_left

from vllm_obs.telemetry.ddsketch import bin_of
from vllm_obs.telemetry.metric_store import EngineSeries
from vllm_obs.telemetry.quantiles import Quantiles

SECONDS_PER_NS = 1e-9


class TokenMetrics:
    """Counts the tokens of one engine.

    Sequences that decode in the same two steps have the same gap, so that where the last gap was counted is kept.
    """

    def __init__(self, series: EngineSeries, quantiles: Quantiles) -> None:
        self._generated = series.value("vllm:generation_tokens_total")
        self._gaps = series.histogram("vllm:inter_token_latency_seconds")
        self._track = quantiles.track("itl", series.engine)
        self._gap_ns = -1
        self._seconds = 0.0
        self._bucket = 0
        self._bin: int | None = None

    def first(self) -> None:
        """A sequence has its first token."""
        self._generated.number += 1

    def next(self, gap_ns: int, sampled_at: int) -> None:
        """A sequence has another token, so long after the one before."""
        self._generated.number += 1
        if gap_ns != self._gap_ns:
            self._look_up(gap_ns)
        gaps = self._gaps
        gaps.counts[self._bucket] += 1
        gaps.total += self._seconds
        self._track.observe_in(self._bin, self._seconds, sampled_at)

    def _look_up(self, gap_ns: int) -> None:
        self._gap_ns = gap_ns
        self._seconds = gap_ns * SECONDS_PER_NS
        self._bucket = bisect_left(self._gaps.bounds, self._seconds)
        self._bin = bin_of(self._seconds)
