"""The paged KV cache: one tensor a layer, laid out so that whole blocks are gathered with one index_select."""

import math

import numpy as np
import torch


class BlockedKVCache:
    """Keys and values of every layer in blocks: each layer is (num_blocks, 2, kv_heads, block_size, head_dim).

    A block of one head is contiguous, so one gather of a sequence's blocks gives (kv_heads, tokens, head_dim).
    """

    def __init__(
        self, shape: tuple[int, int, int, int], num_layers: int, dtype: torch.dtype, device: torch.device
    ):
        self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim = shape
        full = (self.num_blocks, 2, self.num_kv_heads, self.block_size, self.head_dim)
        self.layers = [_zeros(full, dtype, device) for _ in range(num_layers)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose memory, on a CPU, is committed as it is written: torch would write all of it now."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)
