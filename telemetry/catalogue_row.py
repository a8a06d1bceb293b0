"""Metric: one row of the catalogue, everything that can be said of a metric before it has a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary"]
When = Literal["always", "--enable-mfu-metrics", "--show-hidden-metrics-for-version"]

OTHER = "other"
"""Stands for every label value outside a closed set."""

ENGINE_LABELS = ("engine", "model_name")

TOKEN_BUCKETS = (-1.0,)
"""In place of bounds: 1, 2, 5, 10, … up to the engine's max_model_len."""

NO_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class Metric:
    """A metric: its name as it is exposed, what it means, and its labels.

    `buckets` are the upper bounds of a histogram without +Inf. `values` are the closed sets of label values: all
    of them are shown from the start, and whatever is not in them is `other`. `needs_stats` metrics are left out
    under --disable-log-stats.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_VALUES)
    when: When = "always"
    needs_stats: bool = True

    @property
    def unit(self) -> str:
        """The unit its name ends in, empty for a plain number."""
        words = self.name.removesuffix("_total").split("_")
        return next((unit for unit in ("seconds", "bytes", "ratio", "tokens", "flops") if unit in words), "")


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … as far as they are not above `max_model_len`."""
    bounds: list[float] = []
    power = 1
    while power <= max_model_len:
        bounds += [float(digit * power) for digit in (1, 2, 5) if digit * power <= max_model_len]
        power *= 10
    return tuple(bounds)
