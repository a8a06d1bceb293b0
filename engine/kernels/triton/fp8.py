"""Eight-bit floats (e4m3, finite only) from and to float32 by their bits, whether a card has the type or not."""

import triton.language as tl

from vllm_obs.engine.kernels.triton.launch import Tile, device_function

_LARGEST = tl.constexpr(448.0)
_SMALLEST_NORMAL = tl.constexpr(0.015625)
_NAN_CODE = tl.constexpr(0x7F)


@device_function
def decode_e4m3(codes: "Tile") -> Tile:
    """float32 values of uint8 codes, exact; by way of float16, whose small numbers no mode flushes to zero."""
    wide = codes.to(tl.int32)
    magnitude = wide & 0x7F
    half = ((magnitude << 7) | ((wide & 0x80) << 8)).to(tl.uint16).to(tl.float16, bitcast=True)
    return tl.where(magnitude == _NAN_CODE, float("nan"), half.to(tl.float32) * 256.0)


@device_function
def encode_e4m3(values: "Tile") -> Tile:
    """uint8 codes of float32 values: to the nearest, ties to even, beyond ±448 to ±448; NaN stays NaN."""
    bits = values.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(values), _LARGEST)
    size_bits = size.to(tl.int32, bitcast=True)
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below the normal numbers codes are multiples of 2**-9; adding 2**23 leaves the rounded integer in low bits.
    small = (size * 512.0 + 8388608.0).to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(size >= _SMALLEST_NORMAL, normal, small)
    code = tl.where(values != values, _NAN_CODE, code)
    return (code | tl.where(bits < 0, 0x80, 0)).to(tl.uint8)
