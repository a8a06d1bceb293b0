"""Root-mean-square norm of rows, after what a layer made is added to the residual stream."""

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import Argument, Constant, Launch, Number, Pointer, kernel, padded

_NARROW = 2048
"""Rows up to that many numbers are the work of fewer warps."""


@kernel
def rms_norm_kernel(
    residual: "Pointer",
    added: "Pointer",
    weight: "Pointer",
    output: "Pointer",
    residual_stride: "Number",
    added_stride: "Number",
    eps: "Number",
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HAS_ADDED: tl.constexpr,
) -> None:
    """One program: one row."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED_SIZE)
    kept = place < SIZE
    values = tl.load(residual + row * residual_stride + place, mask=kept, other=0.0).to(tl.float32)
    if HAS_ADDED:
        values += tl.load(added + row * added_stride + place, mask=kept, other=0.0).to(tl.float32)
        tl.store(residual + row * residual_stride + place, values.to(residual.dtype.element_ty), mask=kept)
    factor = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + eps)
    normed = values * factor * tl.load(weight + place, mask=kept, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + place, normed.to(output.dtype.element_ty), mask=kept)


def rms_norm(
    residual: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    output: torch.Tensor,
    configs: Configs,
) -> Launch:
    """residual (T, size) += added (T, size), if any; output (T, size) = residual / rms * weight, by float32."""
    num_rows, size = residual.shape
    arguments: dict[str, Argument] = {
        "residual": residual,
        "added": residual if added is None else added,
        "weight": weight,
        "output": output,
        "residual_stride": residual.stride(0),
        "added_stride": 0 if added is None else added.stride(0),
        "eps": eps,
    }
    constants: dict[str, Constant] = {"SIZE": size, "PADDED_SIZE": padded(size), "HAS_ADDED": added is not None}
    config = configs.of("rms_norm", "narrow" if size <= _NARROW else "any")
    return Launch(rms_norm_kernel, (num_rows,), arguments, constants, config)
