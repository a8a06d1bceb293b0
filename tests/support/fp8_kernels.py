"""Kernels that do nothing but change numbers to eight bits and back."""

import triton.language as tl

from vllm_obs.engine.kernels.triton.fp8 import decode_e4m3, encode_e4m3
from vllm_obs.engine.kernels.triton.launch import Pointer, kernel


@kernel
def decode_kernel(codes: "Pointer", values: "Pointer", SIZE: tl.constexpr) -> None:
    """uint8 codes (SIZE,) to float32 values."""
    place = tl.arange(0, SIZE)
    tl.store(values + place, decode_e4m3(tl.load(codes + place)))


@kernel
def encode_kernel(values: "Pointer", codes: "Pointer", SIZE: tl.constexpr) -> None:
    """float32 values (SIZE,) to uint8 codes."""
    place = tl.arange(0, SIZE)
    tl.store(codes + place, encode_e4m3(tl.load(values + place)))
