"""DDSketch: quantiles of a stream to within one per cent, in bounded memory, mergeable.

After Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees"
(VLDB 2019): a value is counted in the bin of its logarithm.
"""

import math
from typing import Any

RELATIVE_ERROR = 0.01
MAX_BINS = 2048
"""Enough for 17 decades; beyond that the lowest bins are merged, and only the lowest quantiles suffer."""

SMALLEST = 1e-9
"""Values below this (seconds: a nanosecond) are zeros."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BINS_PER_E = 1 / math.log(_GAMMA)
_RANK_SLACK = 1e-6


def bin_of(value: float) -> int | None:
    """The number of the bin that counts this value, None for a zero."""
    return math.ceil(math.log(value) * _BINS_PER_E) if value >= SMALLEST else None


class DDSketch:
    """Counts of non-negative values by bin: bin i holds those in (gamma^(i-1), gamma^i]."""

    __slots__ = ("bins", "greatest", "num_zeros", "total")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.num_zeros = 0
        self.total = 0.0
        self.greatest = 0.0

    @property
    def num_observed(self) -> int:
        """How many values are in it."""
        return self.num_zeros + sum(self.bins.values())

    def observe(self, value: float, number: int = 1) -> None:
        """Count so many of one value."""
        index = bin_of(value)
        if index is None:
            self.num_zeros += number
            return
        bins = self.bins
        bins[index] = bins.get(index, 0) + number
        self.total += value * number
        if value > self.greatest:
            self.greatest = value
        if len(bins) > MAX_BINS:
            self._merge_lowest()

    def quantile(self, fraction: float) -> float:
        """The value of the nearest rank, ceil(fraction x count), to within one per cent; the greatest is exact.

        0 when there is none. Of few values a high quantile is therefore the greatest, never a lower one.
        """
        num_observed = self.num_observed
        # 0.07 x 100 is a little more than 7 in binary, and still asks for the seventh.
        rank = max(1, math.ceil(fraction * num_observed - _RANK_SLACK))
        if rank >= num_observed:
            return self.greatest
        num_up_to = self.num_zeros
        if num_up_to >= rank:
            return 0.0
        for index in sorted(self.bins):
            num_up_to += self.bins[index]
            if num_up_to >= rank:
                break
        return min(2 * _GAMMA**index / (_GAMMA + 1), self.greatest)

    def merge(self, other: "DDSketch") -> None:
        """Take in all that another one has seen."""
        for index, count in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + count
        self.num_zeros += other.num_zeros
        self.total += other.total
        self.greatest = max(self.greatest, other.greatest)
        while len(self.bins) > MAX_BINS:
            self._merge_lowest()

    def state(self) -> Any:
        """All of it in plain values."""
        return [list(self.bins), list(self.bins.values()), self.num_zeros, self.total, self.greatest]

    @classmethod
    def of(cls, state: Any) -> "DDSketch":
        """The sketch with that state. TypeError or ValueError if it is none."""
        indices, counts, num_zeros, total, greatest = state
        sketch = cls()
        sketch.bins = {int(index): int(count) for index, count in zip(indices, counts, strict=True)}
        sketch.num_zeros, sketch.total, sketch.greatest = int(num_zeros), float(total), float(greatest)
        return sketch

    def _merge_lowest(self) -> None:
        lowest, next_lowest = sorted(self.bins)[:2]
        self.bins[next_lowest] += self.bins.pop(lowest)
