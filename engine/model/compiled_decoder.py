"""The decoder family on a CPU through compiled kernels: one program a layer, no torch operation inside it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix
from vllm_obs.engine.kernels.cpu.program import Kernels, KernelWatch
from vllm_obs.engine.model.compiled_step import StepPrograms, StepTensors, multiply
from vllm_obs.engine.model.interface import PagedKVCache, Progress, unwatched


@dataclass(frozen=True)
class CompiledDecoder:
    """A DecoderModel. What a sequence gets does not depend on its batch, to the bit.

    embedding: (vocab, hidden). rotations: complex64 (max_model_len, head_dim / 2). Keys and values are held in
    `dtype`, everything between is float32. The cache's block size is the one the kernels were compiled for.
    """

    dtype: torch.dtype
    embedding: torch.Tensor
    rotations: torch.Tensor
    num_layers: int
    programs: StepPrograms
    lm_head: PackedMatrix
    kernels: Kernels

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A zeroed cache of `num_blocks` blocks for all layers; its numbers lie as CacheShape says."""
        shape = self.kernels.shape
        assert block_size == shape.block_size, f"compiled for blocks of {shape.block_size}, not {block_size}"
        size = (num_blocks, shape.num_kv_heads, block_size, shape.head_dim)
        return BlockedKVCache(size, self.num_layers, self.dtype, torch.device("cpu"))

    def kv_block_bytes(self, block_size: int) -> int:
        """Bytes that one block takes over all layers."""
        assert block_size == self.kernels.shape.block_size
        return self.kernels.shape.block_bytes * self.num_layers

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: PagedKVCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        """Hidden states (R, hidden), normed, float32, at `batch.logits_indices`; see interface.DecoderModel."""
        assert isinstance(kv_cache, BlockedKVCache)
        residual = F.embedding(token_ids, self.embedding).float()
        step = StepTensors(residual, positions.contiguous(), batch, kv_cache.layers, on_layer)
        return self.programs.run(step, self.rotations, torch.get_num_threads())

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (R, vocab) in float32 from hidden states (R, hidden) in float32."""
        return multiply(self.kernels, hidden, self.lm_head, torch.get_num_threads())

    def watch_kernels(self, watch: KernelWatch | None) -> None:
        """Tell this watch what every kernel took from now on; None ends it."""
        self.kernels.watch = watch
