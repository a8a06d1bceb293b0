"""The decoder family on a CPU through compiled kernels: one program a layer, no torch operation inside it."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache
from vllm_obs.engine.kernels.cpu.program import Kernels, KernelWatch
from vllm_obs.engine.model.compiled_step import StepPrograms
from vllm_obs.engine.model.interface import PagedKVCache, Progress, unwatched
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.stage_ends import Inlet, Outlet
from vllm_obs.engine.model.step_tensors import StepTensors


@dataclass(frozen=True)
class CompiledDecoder:
    """A DecoderModel, or a part of one. What a sequence gets does not depend on its batch, to the bit.

    rotations: complex64 (max_model_len, head_dim / 2). Keys and values are held in `dtype`, int16 being whole
    numbers with scales beside them; everything between is float32. The cache's block size is the one the kernels
    were compiled for. The last stage has the `lm_head`, the others an `outlet`.
    """

    dtype: torch.dtype
    inlet: Inlet
    rotations: torch.Tensor
    num_layers: int
    programs: StepPrograms
    lm_head: Linear | None
    kernels: Kernels
    outlet: Outlet | None = None

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A zeroed cache of `num_blocks` blocks for all layers; its numbers lie as CacheShape says."""
        shape = self.kernels.shape
        assert block_size == shape.block_size, f"compiled for blocks of {shape.block_size}, not {block_size}"
        size = (num_blocks, shape.num_kv_heads, block_size, shape.token_numbers)
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
        """Hidden states (R, hidden), normed, float32, at `batch.logits_indices`; see interface.DecoderModel.

        None (0, hidden) of a stage that hands on its states.
        """
        assert isinstance(kv_cache, BlockedKVCache)
        residual = self.inlet(token_ids)
        step = StepTensors(residual, positions.contiguous(), batch, kv_cache.layers, on_layer)
        states = self.programs.run(step, self.rotations, torch.get_num_threads())
        return states if self.outlet is None else self.outlet(states)

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (R, vocab) from hidden states (R, hidden), both float32; (R, 0) but on the first shard."""
        assert self.lm_head is not None, "the last stage makes logits"
        return self.lm_head(hidden)

    def watch_kernels(self, watch: KernelWatch | None) -> None:
        """Tell this watch what every kernel took from now on; None ends it."""
        self.kernels.watch = watch
