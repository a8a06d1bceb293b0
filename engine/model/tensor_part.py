"""TensorPart: the rows and columns of a tensor that a rank reads."""

from typing import NamedTuple


class TensorPart(NamedTuple):
    """Spans of rows and of columns; None is all of them. A vector has rows only."""

    rows: range | None = None
    columns: range | None = None


WHOLE = TensorPart()


def span(part: range | None) -> slice:
    """The span as an index."""
    return slice(None) if part is None else slice(part.start, part.stop)
