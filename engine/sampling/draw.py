"""The random number behind each sampled token: a pure function of (seed + sequence index, token position)."""

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]
Float64Array = npt.NDArray[np.float64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_MANTISSA = 2.0**-53


def splitmix64(state: UInt64Array, index: UInt64Array) -> UInt64Array:
    """The `index`-th output (from 0) of SplitMix64 started at `state`, elementwise.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014): the generator adds
    a constant and mixes, so any output is reached without the ones before it.
    """
    mixed: UInt64Array = state + _GAMMA * (index + _ONE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def uniforms(seeds: UInt64Array, sequence_indices: UInt64Array, positions: UInt64Array) -> Float64Array:
    """One float64 in [0, 1), a multiple of 2**-53, for each row (arrays of one length).

    A sequence draws as the first one of a request whose seed is the sum of both: n sequences are n requests, as
    with vLLM. Twice mixed, that sum gives a state, whose stream gives each token position a number.
    """
    first = np.zeros_like(seeds)
    state = splitmix64(splitmix64(seeds + sequence_indices, first), first)
    bits = splitmix64(state, positions) >> np.uint64(11)
    return bits.astype(np.float64) * _MANTISSA
