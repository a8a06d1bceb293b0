"""Panel: one panel of a board before it is Grafana's JSON: what it asks, of which metrics, and how it is drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

NO_COLOURS: Mapping[str, str] = MappingProxyType({})


class Kind(StrEnum):
    """Grafana's type of a panel."""

    LINES = "timeseries"
    TILES = "stat"
    BARS = "bargauge"
    STATES = "state-timeline"
    HEAT = "heatmap"
    TABLE = "table"


class Says(NamedTuple):
    """What a panel's description tells. `next` is a panel to look at after it: `Board: title`."""

    question: str
    formula: str
    good: str
    next: str


class Query(NamedTuple):
    """PromQL and what its series are called. `is_instant` ones are asked at the end of the time range only."""

    expr: str
    legend: str
    is_instant: bool = False
    has_exemplars: bool = False


class Levels(NamedTuple):
    """Where it begins to be of note, and to be bad; below it where `is_low_bad`."""

    warning: float
    bad: float
    is_low_bad: bool = False


@dataclass(frozen=True)
class Panel:
    """`unit` is Grafana's word for it; `words` stand for numbers; `colours` are those of series by name.

    `page` is the inspector's that shows the same in detail. `idle` is said where there is nothing to tell.
    """

    title: str
    says: Says
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    unit: str = "short"
    levels: Levels | None = None
    colours: Mapping[str, str] = field(default_factory=lambda: NO_COLOURS)
    words: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    page: str = "overview"
    idle: str = "nothing yet"
    width: int = 8
    height: int = 8
    is_stacked: bool = False
    most: float | None = None

    @property
    def is_share(self) -> bool:
        """Whether it is drawn from 0 to 1."""
        return self.unit == "percentunit"
