"""Matrix products with weights fixed at load: the ways there are of doing one."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.model.matrix import GROUP_SIZE, FourBit


class Linear(Protocol):
    """A fixed matrix (out, in), perhaps with a bias (out,)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
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


class FourBitLinear:
    """The stored four-bit codes, multiplied without unpacking them to memory: a third of what bfloat16 reads.

    x, and the scales and zeros of the groups, are rounded to bfloat16. The kernel is torch's int4 weight-only one.
    """

    def __init__(self, weight: FourBit, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.codes.to(torch.int32), 1)
        zeros = weight.offsets + 8 * weight.scales  # the kernel's value is (code - 8) * scale + zero
        pairs = torch.stack((weight.scales.t(), zeros.t()), -1)
        self._scales_and_zeros = pairs.to(torch.bfloat16).contiguous()
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16), self._weight, GROUP_SIZE, self._scales_and_zeros
        )
        product = product.to(x.dtype)
        return product if self._bias is None else product.add_(self._bias)


class RowsLinear:
    """Two ways of doing the same product: one for up to `max_few` rows, one for more."""

    def __init__(self, few: Linear, many: Linear, max_few: int) -> None:
        self._few = few
        self._many = many
        self._max_few = max_few

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._few(x) if x.shape[0] <= self._max_few else self._many(x)
