"""Random inputs for the GPU kernels: ragged rows over a paged cache, and small configurations."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import LaunchConfig
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape, RaggedRows

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "fp8": torch.uint8}

TOLERANCES = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""Largest difference from float64 that a number near 1 may have: some roundings of its type."""


def one_config(kernel: str, **sizes: int) -> Configs:
    """A table with one configuration of one kernel."""
    return Configs({kernel: {"any": LaunchConfig({name.upper(): size for name, size in sizes.items()}, 4, 1)}})


@dataclass(frozen=True)
class CacheCase:
    """A cache of one layer and rows over it; what no row may read is NaN (0x7F among fp8 codes)."""

    layer_cache: torch.Tensor
    rows: RaggedRows
    num_tokens: int


def cache_case(
    lengths: list[tuple[int, int]], shape: AttentionShape, block_size: int, dtype: torch.dtype
) -> CacheCase:
    """lengths: (new tokens, tokens before them) of each row. Blocks of a row lie anywhere in the cache."""
    query_lens = [new for new, _ in lengths]
    seq_lens = [new + before for new, before in lengths]
    num_blocks = [-(-length // block_size) for length in seq_lens]
    order = (torch.randperm(sum(num_blocks)) + 1).tolist()
    size = (len(order) + 1, 2, shape.num_kv_heads, block_size, shape.head_dim)
    layer_cache = torch.full(size, torch.nan)
    tables = torch.zeros(len(lengths), max([1, *num_blocks]), dtype=torch.int32)
    for row, seq_len in enumerate(seq_lens):
        for place in range(num_blocks[row]):
            block = order.pop()
            tables[row, place] = block
            used = min(block_size, seq_len - place * block_size)
            layer_cache[block, :, :, :used] = torch.randn(2, shape.num_kv_heads, used, shape.head_dim)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    rows = RaggedRows(tables, starts, torch.tensor(seq_lens, dtype=torch.int32), max(query_lens))
    return CacheCase(_as(layer_cache, dtype), rows, sum(query_lens))


def _as(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.uint8:
        return values.to(torch.float8_e4m3fn).view(torch.uint8)
    return values.to(dtype)
