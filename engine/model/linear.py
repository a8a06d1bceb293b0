"""Matrix products with weights fixed at load: the ways there are of doing one."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation


class Linear(Protocol):
    """A fixed matrix (out, in), perhaps with a bias (out,)."""

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """x (T, in) → (T, out), in x's dtype whatever the matrix is held in."""


class PlainLinear:
    """F.linear in the weight's dtype. In bfloat16 a single row is a plain read of the matrix, so memory-bound."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = None if bias is None else bias.to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias).to(x.dtype)


class PackedLinear:
    """oneDNN with the weight reordered once into its own blocked layout. x must have the weight's dtype."""

    _ROWS_HINT = 32  # what the layout is chosen for; it made no measurable difference between 8 and 256

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, self._ROWS_HINT)
        self._bias = None if bias is None else bias.to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product
