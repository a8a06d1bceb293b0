"""The figures of a measurement: throughput and the distributions of the four latencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_obs.cli.bench.load import Outcome

_MS = 1_000_000
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Latencies:
    """All in milliseconds: a value for each finished request; for `itl`, one for each gap between two chunks.

    ttft: until the first token. tpot: mean time of a token after the first. e2el: until the end of the reply.
    """

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2el: list[float]


@dataclass(frozen=True)
class Throughput:
    """Counts of finished requests over `duration_seconds`, from the first one due to the last reply's end."""

    duration_seconds: float
    num_completed: int
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_good: int
    peak_concurrency: int

    def per_second(self, count: int) -> float:
        """A count as a rate."""
        return count / self.duration_seconds if self.duration_seconds else 0.0


def request_latencies(outcome: Outcome) -> dict[str, float]:
    """ttft, tpot and e2el of one finished request in milliseconds; those that do not exist are left out."""
    latencies = {"e2el": (outcome.ended_at - outcome.due_at) / _MS}
    if outcome.token_moments:
        first_at = outcome.token_moments[0]
        latencies["ttft"] = (first_at - outcome.due_at) / _MS
        if outcome.num_output_tokens > 1:
            latencies["tpot"] = (outcome.token_moments[-1] - first_at) / _MS / (outcome.num_output_tokens - 1)
    return latencies


def latencies(outcomes: Sequence[Outcome]) -> Latencies:
    """The distributions over all finished requests."""
    finished = [outcome for outcome in outcomes if not outcome.error]
    rows = [request_latencies(outcome) for outcome in finished]
    gaps = [
        (later - earlier) / _MS
        for outcome in finished
        for earlier, later in zip(outcome.token_moments, outcome.token_moments[1:], strict=False)
    ]
    columns = {name: [row[name] for row in rows if name in row] for name in ("ttft", "tpot", "e2el")}
    return Latencies(itl=gaps, **columns)


def throughput(outcomes: Sequence[Outcome], objectives: Sequence[tuple[str, float]] = ()) -> Throughput:
    """The counts; a request is good when it keeps to every objective (metric, milliseconds)."""
    finished = [outcome for outcome in outcomes if not outcome.error]
    begun_at = min((outcome.due_at for outcome in outcomes), default=0)
    ended_at = max((outcome.ended_at for outcome in outcomes), default=0)
    return Throughput(
        duration_seconds=(ended_at - begun_at) / _SECOND,
        num_completed=len(finished),
        num_failed=len(outcomes) - len(finished),
        num_prompt_tokens=sum(outcome.num_prompt_tokens for outcome in finished),
        num_output_tokens=sum(outcome.num_output_tokens for outcome in finished),
        num_good=sum(_is_good(outcome, objectives) for outcome in finished),
        peak_concurrency=_peak_concurrency(outcomes),
    )


def loaded_rate(outcomes: Sequence[Outcome], seconds: float) -> float:
    """Output tokens a second of the first `seconds`, in which a closed loop sends a request for each that ends.

    Afterwards ever fewer run: a server whose streams end one after the other is busy with the rest for longer than
    one whose streams end together. A chunk counts as its part of the reply's tokens.
    """
    begun_at = min((outcome.due_at for outcome in outcomes), default=0)
    end = begun_at + round(seconds * _SECOND)
    count = 0.0
    for outcome in outcomes:
        if moments := outcome.token_moments:
            count += sum(moment <= end for moment in moments) * outcome.num_output_tokens / len(moments)
    return count / seconds


def _is_good(outcome: Outcome, objectives: Sequence[tuple[str, float]]) -> bool:
    own = request_latencies(outcome)
    return all(own.get(name, 0.0) <= limit for name, limit in objectives)


def _peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    # An end sorts before a start of the same moment.
    changes = sorted(
        [(outcome.sent_at, 1) for outcome in outcomes] + [(outcome.ended_at, -1) for outcome in outcomes]
    )
    level = peak = 0
    for _, change in changes:
        level += change
        peak = max(peak, level)
    return peak


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of the whole population; 0 of nothing."""
    middle = mean(values)
    return math.sqrt(mean([(value - middle) ** 2 for value in values]))


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile by linear interpolation between the two nearest ranks; 0 of nothing."""
    if not values:
        return 0.0
    ranked = sorted(values)
    place = (len(ranked) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)
