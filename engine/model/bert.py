"""Encoders of the BERT family (Devlin et al. 2018; RoBERTa, Liu et al. 2019): whole texts to hidden states."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.interface import PagedKVCache, Progress, unwatched
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.numerics import Numerics


@dataclass
class NoKVCache:
    """An encoder keeps no keys and values: its blocks are counted, and hold nothing."""

    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class LayerNorm:
    """Layer norm over the last axis, float32 to float32."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class BertLayer:
    """Attention and MLP, each added to its input and normed after that."""

    num_heads: int
    numerics: Numerics
    qkv: Linear
    attended: Linear
    attention_norm: LayerNorm
    inner: Linear
    outer: Linear
    output_norm: LayerNorm

    def __call__(self, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """The next hidden states (T, hidden) in float32 of texts that lie one after another."""
        heads = self._attend(self._product(self.qkv, x), lengths)
        x = self.attention_norm(x + self._product(self.attended, heads))
        return self.output_norm(x + self._product(self.outer, F.gelu(self._product(self.inner, x))))

    def _attend(self, qkv: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Each text's tokens look at all of that text's, before and after them."""
        split = qkv.to(self.numerics.attention).view(len(qkv), 3, self.num_heads, -1).permute(1, 2, 0, 3)
        queries, keys, values = (part.split_with_sizes(lengths, dim=1) for part in split.unbind(0))
        heads = [
            F.scaled_dot_product_attention(query, key, value)
            for query, key, value in zip(queries, keys, values, strict=True)
        ]
        return torch.cat([text.transpose(0, 1).flatten(1) for text in heads]).float()

    def _product(self, linear: Linear, x: torch.Tensor) -> torch.Tensor:
        return linear(x.to(self.numerics.activations)).float()


@dataclass(frozen=True)
class Bert:
    """A DecoderModel in form, so that one runner runs both; every text must come whole, in one step."""

    architecture: ModelArchitecture
    numerics: Numerics
    words: torch.Tensor
    positions: torch.Tensor
    token_type: torch.Tensor
    embedding_norm: LayerNorm
    layers: list[BertLayer]

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """Blocks that hold nothing."""
        return NoKVCache(num_blocks, block_size)

    def kv_block_bytes(self, block_size: int) -> int:
        """Nothing is kept."""
        return 0

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: PagedKVCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        """Hidden states (R, hidden) in float32 at `batch.logits_indices`; see interface.DecoderModel."""
        assert batch.query_lens == batch.seq_lens, "an encoder's text comes in one piece"
        placed = self.positions.index_select(0, positions + self.architecture.position_offset)
        x = F.embedding(token_ids, self.words).float() + self.token_type.float() + placed.float()
        x = self.embedding_norm(x)
        for layer in self.layers:
            x = layer(x, batch.query_lens)
            on_layer()
        return x.index_select(0, batch.logits_indices)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """An encoder has no head: nothing asks for tokens, since the bounds refuse that."""
        raise NotImplementedError("an encoder makes no tokens")
