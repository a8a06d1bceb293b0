"""In which numbers the decoder of torch operations computes, and how its matrix products are done."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.model.linear import Linear, PackedLinear, PlainLinear

_MAX_SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class Numerics:
    """Chosen once for a model.

    dtype: what was asked for; the embedding is held in it. weights: what matrices are held in. cache: what keys
    and values are held in. activations: what passes between the operations of a layer. attention: what scores and
    sums are computed in. The residual stream is float32. `is_packed`: products by oneDNN, weights reordered once.
    """

    device: torch.device
    dtype: torch.dtype
    weights: torch.dtype
    activations: torch.dtype
    attention: torch.dtype
    cache: torch.dtype
    is_packed: bool

    def linear(self, matrix: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """A layer's matrix product; x must be in `activations`."""
        if self.is_packed:
            return PackedLinear(matrix.to(self.weights), bias)
        return PlainLinear(matrix.to(self.weights).to(self.device), bias)

    def lm_head(self, values: torch.Tensor, placed: torch.Tensor) -> Linear:
        """The product that makes logits, from float32 to float32; `placed` is the matrix as `placed` gives it.

        Rounded to bfloat16, logits near 16 lie 0.125 apart: the best token would be a tie. So a CPU keeps this one
        matrix in float32.
        """
        return PackedLinear(values.float(), None) if self.is_packed else PlainLinear(placed, None)

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the model's dtype on its device."""
        return tensor.to(self.dtype).to(self.device)


def choose_numerics(dtype: torch.dtype, device: torch.device, num_parameters: int) -> Numerics:
    """The numbers for a model of that size.

    A CPU without bfloat16 instructions is slow at bfloat16 products, and widening what is read from the cache
    costs more than reading it wide: there all of it is held in float32, where memory allows.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return Numerics(device, dtype, dtype, activations=dtype, attention=dtype, cache=dtype, is_packed=False)
    if dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16()):
        return Numerics(device, dtype, dtype, activations=dtype, attention=dtype, cache=dtype, is_packed=True)
    wide = torch.float32
    import psutil  # here: compiled kernels do without

    if 4 * num_parameters > _MAX_SHARE_OF_MEMORY * psutil.virtual_memory().available:
        return Numerics(device, dtype, dtype, activations=dtype, attention=wide, cache=dtype, is_packed=False)
    return Numerics(device, dtype, wide, activations=wide, attention=wide, cache=wide, is_packed=True)


def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
