"""What the model runner needs of a model."""

from collections.abc import Callable
from typing import Protocol

import torch

from vllm_obs.engine.attention.batch import AttentionBatch

Progress = Callable[[], None]
"""Called as a forward pass moves on, once a layer, so that a long one is not taken for a stall."""


def unwatched() -> None:
    """Progress that nobody asks for."""


class PagedKVCache(Protocol):
    """Keys and values of every layer, in blocks. Allocated once; layout belongs to the attention backend."""

    num_blocks: int
    block_size: int


class DecoderModel(Protocol):
    """A causal decoder with its weights on one device."""

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A zeroed cache of `num_blocks` blocks for all layers."""

    def kv_block_bytes(self, block_size: int) -> int:
        """Bytes that one block takes over all layers."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: PagedKVCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        """Hidden states (R, hidden) at `batch.logits_indices` for tokens (T,) at positions (T,), both int64.

        Writes the step's keys and values into the cache.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (R, vocab) in float32 from hidden states (R, hidden)."""
