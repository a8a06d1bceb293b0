"""Candidates: the configurations near one, nearest first, in the order in which they are tried."""

from collections.abc import Iterator
from dataclasses import replace

from vllm_obs.engine.kernels.triton.launch import LaunchConfig

LEAST_SIZES = {"BLOCK_M": 16, "BLOCK_N": 16}
"""Tensor cores take no less."""
MOST_SIZES = {"BLOCK_M": 256, "BLOCK_N": 256}
_LEAST_SIZE, _MOST_SIZE = 1, 32768
_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5)


def neighbours(config: LaunchConfig) -> Iterator[LaunchConfig]:
    """One thing changed by one step: block sizes first, for they matter most, then warps, then stages."""
    for name, size in config.sizes.items():
        least, most = LEAST_SIZES.get(name, _LEAST_SIZE), MOST_SIZES.get(name, _MOST_SIZE)
        for other in (2 * size, size // 2):
            if least <= other <= most:
                yield replace(config, sizes={**config.sizes, name: other})
    for num_warps in _beside(_WARPS, config.num_warps):
        yield replace(config, num_warps=num_warps)
    for num_stages in _beside(_STAGES, config.num_stages):
        yield replace(config, num_stages=num_stages)


def _beside(known: tuple[int, ...], value: int) -> list[int]:
    larger, smaller = (each for each in known if each > value), (each for each in reversed(known) if each < value)
    return [each for each in (next(larger, None), next(smaller, None)) if each is not None]
