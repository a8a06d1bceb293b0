"""A weight matrix on its way from a file to a linear layer: dense, or in the four-bit form the file has it in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
        grouped = self.codes.view(*self.scales.shape, GROUP_SIZE).numpy()
        values = np.multiply(grouped, self.scales.unsqueeze(-1).numpy(), dtype=np.float32)
        values += self.offsets.unsqueeze(-1).numpy()
        return torch.from_numpy(values).view(self.codes.shape)


Matrix = torch.Tensor | FourBit
"""(out, in); a dense one is in the dtype the file's numbers come in."""


def dense(matrix: Matrix) -> torch.Tensor:
    """The values (out, in) of a matrix in either form."""
    return matrix.values() if isinstance(matrix, FourBit) else matrix


def stacked(matrices: Sequence[Matrix], order: torch.Tensor | None = None) -> Matrix:
    """The matrices one above the other, then their rows taken in `order`; four-bit if all of them are."""
    four_bit = [matrix for matrix in matrices if isinstance(matrix, FourBit)]
    if len(four_bit) < len(matrices):
        return _stack([dense(matrix) for matrix in matrices], order)
    return FourBit(
        codes=_stack([matrix.codes for matrix in four_bit], order),
        scales=_stack([matrix.scales for matrix in four_bit], order),
        offsets=_stack([matrix.offsets for matrix in four_bit], order),
    )


def _stack(tensors: Sequence[torch.Tensor], order: torch.Tensor | None) -> torch.Tensor:
    whole = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
    return whole if order is None else whole[order]
