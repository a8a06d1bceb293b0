"""Attention over the paged KV cache in plain torch, for CPU and CUDA."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.attention.step_indices import ChunkRow, DecodeGroup, StepIndices

_QUERIES_AT_ONCE = 512
"""Bounds the mask and the scores of a chunk over a long context."""


@dataclass(frozen=True)
class PagedAttention:
    """Grouped-query attention of one layer. `window` is the sliding window in tokens, or None."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None

    def __call__(self, qkv: torch.Tensor, layer_cache: torch.Tensor, indices: StepIndices) -> torch.Tensor:
        """Write the step's keys and values, then attend.

        qkv (T, (heads + 2 * kv_heads) * head_dim), rotated → (T, heads * head_dim).
        """
        num_query_values = self.num_heads * self.head_dim
        written = qkv[:, num_query_values:].reshape(-1, self.head_dim).to(layer_cache.dtype)
        layer_cache.view(-1, self.head_dim).index_copy_(0, indices.write, written)
        queries = qkv[:, :num_query_values]
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for group in indices.decodes:
            self._decode(queries, layer_cache, group, output)
        for row in indices.chunks:
            rows = slice(row.start, row.start + row.num_queries)
            output[rows] = self._chunk(queries[rows], layer_cache, row)
        return output

    def _gathered(self, layer_cache: torch.Tensor, gather: torch.Tensor, num_rows: int) -> torch.Tensor:
        """(2, num_rows * kv_heads, tokens, head_dim): keys and values of whole blocks."""
        block_values = layer_cache.shape[-2] * self.head_dim
        blocks = layer_cache.view(-1, block_values).index_select(0, gather)
        return blocks.view(2, num_rows * self.num_kv_heads, -1, self.head_dim)

    def _decode(
        self, queries: torch.Tensor, layer_cache: torch.Tensor, group: DecodeGroup, output: torch.Tensor
    ) -> None:
        keys, values = self._gathered(layer_cache, group.gather, group.num_rows)
        rows = queries[: group.num_rows] if group.rows is None else queries.index_select(0, group.rows)
        packed = rows.reshape(group.num_rows * self.num_kv_heads, -1, self.head_dim)
        scores = torch.baddbmm(group.mask, packed, keys.transpose(1, 2), alpha=self.head_dim**-0.5)
        attended = torch.bmm(scores.softmax(-1), values).view(group.num_rows, -1)
        if group.rows is None:
            output[: group.num_rows] = attended
        else:
            output.index_copy_(0, group.rows, attended)

    def _chunk(self, queries: torch.Tensor, layer_cache: torch.Tensor, row: ChunkRow) -> torch.Tensor:
        keys, values = self._gathered(layer_cache, row.gather, 1)[:, None, :, : row.seq_len]
        heads = queries.view(row.num_queries, self.num_heads, self.head_dim).transpose(0, 1)[None]
        first = row.seq_len - row.num_queries
        outputs = []
        for start in range(0, row.num_queries, _QUERIES_AT_ONCE):
            some = heads[:, :, start : start + _QUERIES_AT_ONCE]
            position = first + start + torch.arange(some.shape[2], device=queries.device)[:, None]
            key_position = torch.arange(row.seq_len, device=queries.device)
            mask = key_position <= position
            if self.window is not None:
                mask &= key_position > position - self.window
            outputs.append(F.scaled_dot_product_attention(some, keys, values, attn_mask=mask, enable_gqa=True))
        return torch.cat(outputs, 2)[0].transpose(0, 1).reshape(row.num_queries, -1)
