"""A weight matrix on its way from a file to a linear layer, with its four-bit form where the file has one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GROUP_SIZE = 32
"""How many neighbours in a row share a scale and an offset in the four-bit form."""


@dataclass(frozen=True)
class FourBit:
    """value = code * scale + offset.

    codes: uint8 (out, in), 0 to 15. scales, offsets: float32 (out, in / GROUP_SIZE).
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor

    def values(self) -> torch.Tensor:
        """The matrix in float32 (out, in), equal to the bit to dequantising by definition."""
        grouped = self.codes.view(*self.scales.shape, GROUP_SIZE)
        values = grouped * self.scales.unsqueeze(-1)
        return values.add_(self.offsets.unsqueeze(-1)).view(self.codes.shape)


@dataclass(frozen=True)
class Matrix:
    """values: (out, in) in the dtype the file's numbers come in; four_bit: the same values, or None."""

    values: torch.Tensor
    four_bit: FourBit | None = None


def stacked(matrices: Sequence[Matrix], order: torch.Tensor | None = None) -> Matrix:
    """The matrices one above the other, then their rows taken in `order`."""
    return Matrix(
        _stack([matrix.values for matrix in matrices], order),
        _stacked_four_bit([matrix.four_bit for matrix in matrices], order),
    )


def _stack(tensors: Sequence[torch.Tensor], order: torch.Tensor | None) -> torch.Tensor:
    whole = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
    return whole if order is None else whole[order]


def _stacked_four_bit(parts: Sequence[FourBit | None], order: torch.Tensor | None) -> FourBit | None:
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    return FourBit(
        codes=_stack([part.codes for part in known], order),
        scales=_stack([part.scales for part in known], order),
        offsets=_stack([part.offsets for part in known], order),
    )
