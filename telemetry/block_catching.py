"""Catching: what a map of blocks that lost records must still hear before it is exact again."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Catching:
    """These blocks, who lives, and the tables not `told` since.

    `told` is cut to those that live whenever that is known.
    """

    blocks: set[int]
    told: set[str] = field(default_factory=set)
    missing: set[str] | None = None
    """Live sequences whose table was not told; None as long as it is not known who lives."""
