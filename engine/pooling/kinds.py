"""The ways of making one vector of a prompt's hidden states."""

from typing import Literal

PoolingKind = Literal["last", "mean", "cls"]

POOLING_KINDS: tuple[PoolingKind, ...] = ("last", "mean", "cls")
"""The last token's state, the mean over all tokens, or the first token's. Their places are codes in a batch."""

READING_ALL: frozenset[str] = frozenset({"mean", "cls"})
"""Those that need states which a cached prefix would leave uncomputed."""
