"""Board: rows of panels, and where on the screen each of them goes."""

from collections.abc import Iterator
from typing import NamedTuple

from vllm_obs.grafana.panel import Panel

NUM_COLUMNS = 24


class Row(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Place(NamedTuple):
    """Where something lies on a board of 24 columns."""

    x: int
    y: int
    w: int
    h: int


class Board(NamedTuple):
    """`uid` is its name in addresses and of its file. `is_fleets` ones ask for what vLLM has too only."""

    uid: str
    title: str
    says: str
    rows: tuple[Row, ...]
    is_fleets: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All its panels in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


def placed(board: Board) -> Iterator[tuple[Row | Panel, Place]]:
    """Its rows and panels in order, each line of panels below the one before, as high as its highest."""
    y = 0
    for row in board.rows:
        yield row, Place(0, y, NUM_COLUMNS, 1)
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > NUM_COLUMNS:
                x, y, height = 0, y + height, 0
            yield panel, Place(x, y, panel.width, panel.height)
            x, height = x + panel.width, max(height, panel.height)
        y += height
