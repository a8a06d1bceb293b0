"""The gate of a gated MLP: SiLU of one half of a row times the other half."""

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import Argument, Launch, Number, Pointer, kernel


@kernel
def silu_mul_kernel(
    gate_up: "Pointer", output: "Pointer", row_stride: "Number", SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr
) -> None:
    """One program: a piece of one row."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    kept = place < SIZE
    gate = tl.load(gate_up + row * row_stride + place, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + SIZE + place, mask=kept, other=0.0).to(tl.float32)
    opened = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * SIZE + place, opened.to(output.dtype.element_ty), mask=kept)


def silu_mul(gate_up: torch.Tensor, output: torch.Tensor, configs: Configs) -> Launch:
    """gate_up (T, 2 * size), rows strided → output (T, size); computed in float32."""
    config = configs.of("silu_mul")
    num_rows, size = output.shape
    grid = (num_rows, -(-size // config.sizes["BLOCK_SIZE"]))
    arguments: dict[str, Argument] = {"gate_up": gate_up, "output": output, "row_stride": gate_up.stride(0)}
    return Launch(silu_mul_kernel, grid, arguments, {"SIZE": size}, config)
