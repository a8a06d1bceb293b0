"""The random number behind each sampled token, as `sampling.draw` makes it, on the device."""

import triton.language as tl

from vllm_obs.engine.kernels.triton.launch import Number, Tile, device_function

_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_MANTISSA = tl.constexpr(2.0**-53)


@device_function
def splitmix64(state: "Tile", index: "Tile") -> "Tile":
    """The `index`-th output of SplitMix64 started at `state`, both uint64 blocks."""
    gamma = tl.full(state.shape, _GAMMA, tl.uint64)
    mixed = state + gamma * (index + 1)
    mixed = (mixed ^ (mixed >> 30)) * tl.full(state.shape, _MIX_1, tl.uint64)
    mixed = (mixed ^ (mixed >> 27)) * tl.full(state.shape, _MIX_2, tl.uint64)
    return mixed ^ (mixed >> 31)


@device_function
def uniform(seed: "Number", sequence_index: "Number", position: "Number") -> "Tile":
    """One float64 in [0, 1) from int64 numbers (their bits are taken as unsigned); shape (1,)."""
    first = tl.zeros([1], tl.uint64)
    start = first + seed.to(tl.uint64, bitcast=True) + sequence_index.to(tl.uint64, bitcast=True)
    state = splitmix64(splitmix64(start, first), first)
    bits = splitmix64(state, first + position.to(tl.uint64, bitcast=True)) >> 11
    return bits.to(tl.float64) * _MANTISSA
