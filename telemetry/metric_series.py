"""Value and Histogram: one time series' numbers, cheap enough to be written for every token."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple


class Exemplar(NamedTuple):
    """A sampled request's trace (32 hexadecimal digits), what was observed of it, and when (s since 1970)."""

    trace_id: str
    value: float
    wall_seconds: float


class Value:
    """A counter or a gauge."""

    __slots__ = ("exemplar", "number")

    def __init__(self) -> None:
        self.number: float = 0
        self.exemplar: Exemplar | None = None

    def add(self, amount: float = 1, exemplar: Exemplar | None = None) -> None:
        """Count more; `amount` is not negative."""
        self.number += amount
        if exemplar is not None:
            self.exemplar = exemplar

    def set(self, number: float) -> None:
        """Take this level."""
        self.number = number

    def raise_to(self, number: float) -> None:
        """Take a total that somebody else counts; one that is lower is stale."""
        self.number = max(self.number, number)

    def state(self) -> Any:
        """Its number, in plain values."""
        return self.number

    def restore(self, state: Any) -> None:
        """Go on from a number. Raises TypeError or ValueError if it is none."""
        self.number = float(state)


class Histogram:
    """Counts by upper bound, inclusive; the last is of what is above every bound. A summary has no bounds."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    @property
    def num_observed(self) -> int:
        """How often something was observed."""
        return sum(self.counts)

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        """Count one value."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.total += value
        if exemplar is not None:
            self.exemplars[index] = exemplar

    def state(self) -> Any:
        """Bounds, counts and sum, in plain values."""
        return [list(self.bounds), list(self.counts), self.total]

    def restore(self, state: Any) -> None:
        """Go on from counts, with their bounds. Raises TypeError or ValueError if they do not fit each other."""
        bounds, counts, total = state
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{len(counts)} counts for {len(bounds)} bounds")
        self.bounds, self.counts = tuple(map(float, bounds)), list(map(int, counts))
        self.total = float(total)
