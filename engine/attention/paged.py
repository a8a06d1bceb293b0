"""Attention over the paged KV cache in plain torch, for CPU and CUDA."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.attention.step_indices import ChunkRow, DecodeGroup, StepIndices


@dataclass(frozen=True)
class PagedAttention:
    """Grouped-query attention of one layer.

    window: the sliding window in tokens, or None. dtype: what scores and sums are computed in (the softmax of a
    decode step is in float32 whatever it is). output_dtype: what the result is handed on in.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    dtype: torch.dtype
    output_dtype: torch.dtype

    def __call__(self, qkv: torch.Tensor, layer_cache: torch.Tensor, indices: StepIndices) -> torch.Tensor:
        """Write the step's keys and values, then attend.

        qkv: (T, (heads + 2 * kv_heads) * head_dim), rotated, is used up → (T, heads * head_dim).
        """
        # A block with room left is read to its end and masked, and masking cannot undo a NaN: a row that has gone
        # wrong must not leave one behind for the block's next owner. Its own residual stream still tells.
        qkv.nan_to_num_(0.0, 0.0, 0.0)
        num_query_values = self.num_heads * self.head_dim
        written = qkv[:, num_query_values:].reshape(-1, self.head_dim).to(layer_cache.dtype)
        layer_cache.view(-1, self.head_dim).index_copy_(0, indices.write, written)
        queries = qkv[:, :num_query_values].to(self.dtype)
        if len(indices.decodes) == 1 and not indices.chunks:
            return self._decode(queries, layer_cache, indices.decodes[0]).to(self.output_dtype)
        output = torch.empty(queries.shape, dtype=self.output_dtype, device=qkv.device)
        for group in indices.decodes:
            output[group.rows] = self._decode(queries[group.rows], layer_cache, group).to(self.output_dtype)
        for row in indices.chunks:
            self._chunk(queries, layer_cache, row, output)
        return output

    def _gathered(self, layer_cache: torch.Tensor, gather: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Keys and values of whole blocks: (2, num_rows * kv_heads, tokens, head_dim)."""
        block_values = layer_cache.shape[-2] * self.head_dim
        blocks = layer_cache.view(-1, block_values).index_select(0, gather).to(self.dtype)
        return blocks.view(2, num_rows * self.num_kv_heads, -1, self.head_dim)

    def _decode(self, queries: torch.Tensor, layer_cache: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        """(B, heads * head_dim); the query heads that share a key head are the rows of one product."""
        keys, values = self._gathered(layer_cache, group.gather, group.num_rows)
        packed = queries.reshape(group.num_rows * self.num_kv_heads, -1, self.head_dim)
        scores = torch.baddbmm(group.mask, packed, keys.transpose(1, 2), alpha=self.head_dim**-0.5)
        shares = scores.softmax(-1, dtype=torch.float32).to(self.dtype)
        return torch.bmm(shares, values).view(group.num_rows, -1)

    def _chunk(
        self, queries: torch.Tensor, layer_cache: torch.Tensor, row: ChunkRow, output: torch.Tensor
    ) -> None:
        keys, values = self._gathered(layer_cache, row.gather, 1)[:, None]
        for span in row.spans:
            visible = slice(span.first_key, span.end_key)
            attended = F.scaled_dot_product_attention(
                queries[span.start : span.end].view(1, -1, self.num_heads, self.head_dim).transpose(1, 2),
                keys[:, :, visible],
                values[:, :, visible],
                attn_mask=span.mask,
                is_causal=span.mask is None,
                enable_gqa=True,
            )
            output[span.start : span.end] = attended[0].transpose(0, 1).flatten(1)
