"""Matrix products with weights fixed at load, each done the way that is fastest for its numbers here."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation


class Linear(Protocol):
    """A fixed matrix (out, in), perhaps with a bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (T, in) → (T, out) in x's dtype."""


class PlainLinear:
    """F.linear."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)
