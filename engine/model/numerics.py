"""In which numbers a model computes on this machine, and how its matrix products are done there."""

from dataclasses import dataclass
from typing import Literal

import psutil
import torch

from vllm_obs.engine.model.linear import FourBitLinear, Linear, PackedLinear, PlainLinear, RowsLinear
from vllm_obs.engine.model.matrix import FourBit, Matrix, dense

Method = Literal["plain", "packed", "by_rows"]

_FOUR_BIT_ROWS = {"packed": 4, "by_rows": 8}
"""Up to how many rows the four-bit product is the fastest, by the method used for more."""

_MAX_SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class Numerics:
    """Chosen once for a model.

    dtype: what was asked for; the embedding is held in it. cache: what keys and values are held in.
    The residual stream is float32.
    activations: what passes between the operations of a layer. attention: what scores and sums are computed in.
    method: plain F.linear; packed oneDNN; or by_rows: few rows read few bytes, more use packed float32.
    """

    device: torch.device
    dtype: torch.dtype
    activations: torch.dtype
    attention: torch.dtype
    cache: torch.dtype
    method: Method

    def linear(self, matrix: Matrix, bias: torch.Tensor | None) -> Linear:
        """A layer's matrix product done the fastest way here; x must be in `activations`."""
        values = dense(matrix)
        if self.method == "plain":
            return PlainLinear(self.placed(values), bias)
        many = PackedLinear(self.placed(values) if self.method == "packed" else values.float(), bias)
        if isinstance(matrix, FourBit) and self._multiplies_codes(matrix):
            return RowsLinear(FourBitLinear(matrix, bias), many, _FOUR_BIT_ROWS[self.method])
        if self.method == "packed":
            return many
        return RowsLinear(PlainLinear(self.placed(values), bias), many, max_few=1)

    def lm_head(self, values: torch.Tensor, placed: torch.Tensor) -> Linear:
        """The product that makes logits, from float32 to float32; `placed` is the matrix as `placed` gives it.

        Rounded to bfloat16, logits near 16 lie 0.125 apart: the best token would be a tie. So a CPU keeps this one
        matrix in float32, and where a single row should read less, in float16, which is as fast there and finer.
        """
        if self.method == "plain":
            return PlainLinear(placed, None)
        many = PackedLinear(values.float(), None)
        return many if self.method == "packed" else RowsLinear(PlainLinear(values.half(), None), many, max_few=1)

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the model's dtype on its device."""
        return tensor.to(self.dtype).to(self.device)

    def _multiplies_codes(self, matrix: FourBit) -> bool:
        """The kernel takes bfloat16 and works on 16 outputs at a time."""
        return self.dtype == torch.bfloat16 and matrix.codes.shape[0] % 16 == 0


def choose_numerics(dtype: torch.dtype, device: torch.device, num_parameters: int) -> Numerics:
    """The numbers and methods for a model of that size.

    A CPU without bfloat16 instructions is slow at bfloat16 products of more than one row, and widening what is
    read from the cache costs more than reading it wide: there weights are also, and keys and values only, held in
    float32, where memory allows.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return Numerics(device, dtype, activations=dtype, attention=dtype, cache=dtype, method="plain")
    if dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16()):
        return Numerics(device, dtype, activations=dtype, attention=dtype, cache=dtype, method="packed")
    wide = torch.float32
    if 4 * num_parameters > _MAX_SHARE_OF_MEMORY * psutil.virtual_memory().available:
        return Numerics(device, dtype, activations=dtype, attention=wide, cache=dtype, method="plain")
    return Numerics(device, dtype, activations=wide, attention=wide, cache=wide, method="by_rows")


def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
