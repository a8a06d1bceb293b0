"""TokenMetrics: what the tokens of a step add to an engine's series, all with the same gap at once."""

from bisect import bisect_left

from vllm_obs.telemetry.metric_store import EngineSeries
from vllm_obs.telemetry.quantiles import Quantiles

SECONDS_PER_NS = 1e-9


class TokenMetrics:
    """Counts the tokens of one engine. Sequences that decode in the same two steps have the same gap."""

    def __init__(self, series: EngineSeries, quantiles: Quantiles) -> None:
        self._generated = series.value("vllm:generation_tokens_total")
        self._gaps = series.histogram("vllm:inter_token_latency_seconds")
        self._track = quantiles.track("itl", series.engine)

    def first(self) -> None:
        """A sequence has its first token."""
        self._generated.number += 1

    def next(self, num_tokens: int, gap_ns: int, sampled_at: int) -> None:
        """So many sequences have another token, so long after the one before."""
        seconds = gap_ns * SECONDS_PER_NS
        self._generated.number += num_tokens
        gaps = self._gaps
        gaps.counts[bisect_left(gaps.bounds, seconds)] += num_tokens
        gaps.total += seconds * num_tokens
        self._track.observe(seconds, sampled_at, num_tokens)
