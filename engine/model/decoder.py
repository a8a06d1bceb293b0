"""The decoder family: embedding, layers over a paged KV cache, final norm and logits, or some of that."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache
from vllm_obs.engine.attention.step_indices import StepIndexer, StepIndices
from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.interface import PagedKVCache, Progress, unwatched
from vllm_obs.engine.model.layers import DecoderLayer
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.numerics import Numerics
from vllm_obs.engine.model.stage_ends import Inlet, Outlet


@dataclass(frozen=True)
class Decoder:
    """A DecoderModel, or what one rank has of it: `architecture` is the shape of that.

    `rotations` is complex64 (max_model_len, head_dim / 2). Without an `lm_head` another stage makes the logits.
    """

    architecture: ModelArchitecture
    numerics: Numerics
    inlet: Inlet
    rotations: torch.Tensor
    layers: list[DecoderLayer]
    outlet: Outlet
    lm_head: Linear | None

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A zeroed cache of `num_blocks` blocks for all layers."""
        shape = (num_blocks, self.architecture.num_kv_heads, block_size, self.architecture.head_dim)
        return BlockedKVCache(shape, len(self.layers), self.numerics.cache, self.numerics.device)

    def kv_block_bytes(self, block_size: int) -> int:
        """Bytes that one block takes over all layers."""
        numbers = 2 * self.architecture.num_kv_heads * block_size * self.architecture.head_dim
        return numbers * self.numerics.cache.itemsize * len(self.layers)

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
        indices = self._indices(batch, kv_cache)
        rotations = self.rotations.index_select(0, positions).unsqueeze(1)
        residual = self.inlet(token_ids)
        last = len(self.layers) - 1 if self.lm_head is not None else -1
        for number, (layer, layer_cache) in enumerate(zip(self.layers, kv_cache.layers, strict=True)):
            attended = layer.attend(residual, rotations, layer_cache, indices[layer.attention.window])
            if number == last:  # from here on only the rows that are asked for matter
                residual = residual.index_select(0, batch.logits_indices)
                attended = attended.index_select(0, batch.logits_indices)
            if len(residual):
                residual = layer.finish(residual, attended)
            on_layer()
        return self.outlet(residual)

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (R, vocab) in float32 from hidden states (R, hidden); (R, 0) but on the first shard."""
        assert self.lm_head is not None, "the last stage makes logits"
        return self.lm_head(hidden)

    def _indices(self, batch: AttentionBatch, cache: BlockedKVCache) -> dict[int | None, StepIndices]:
        """The step's indices for each sliding window that some layer has."""
        indexer = StepIndexer(batch, cache, self.numerics.attention)
        windows = {layer.attention.window for layer in self.layers}
        return {window: indexer.indices(window) for window in windows}
