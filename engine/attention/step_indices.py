"""Where one step's tokens go in the KV cache and what each row reads from it, computed once for all layers."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache
from vllm_obs.engine.attention.row_groups import group_rows

_GATHERED_BYTES = {"cpu": 2 << 20, "cuda": 256 << 20}
"""What a group of rows gathers in float32, at most: on a CPU it should stay in cache."""

_QUERIES_AT_ONCE = 512
"""How many queries of a chunk attend together; bounds the mask and, with it, memory at long contexts."""


class DecodeGroup(NamedTuple):
    """Rows of one query token and similar lengths, attended to together.

    rows: which decode rows, a slice or int64 (B,).
    gather: int64 (2 * B * kv_heads * blocks,) into the cache seen as (…, block_size * head_dim).
    mask: (B * kv_heads, 1, tokens), 0 or -inf.
    """

    rows: slice | torch.Tensor
    num_rows: int
    gather: torch.Tensor
    mask: torch.Tensor


class QuerySpan(NamedTuple):
    """Some queries of a chunk: tokens `start` to `end` of the step, seeing keys `first_key` to `end_key`.

    mask: (queries, keys), 0 or -inf; None where plain causal masking of a square says the same.
    """

    start: int
    end: int
    first_key: int
    end_key: int
    mask: torch.Tensor | None


class ChunkRow(NamedTuple):
    """A row of several query tokens: the gather of its blocks, as in DecodeGroup, and its queries by spans."""

    gather: torch.Tensor
    spans: list[QuerySpan]


@dataclass(frozen=True)
class StepIndices:
    """One step's indices. write: int64 (T * 2 * kv_heads,) into the cache seen as (…, head_dim)."""

    write: torch.Tensor
    decodes: list[DecodeGroup]
    chunks: list[ChunkRow]


class StepIndexer:
    """Turns block tables and slots into indices for one cache.

    `window` is how far back a row looks, in tokens, or None; masks are in `dtype`.
    """

    def __init__(self, batch: AttentionBatch, cache: BlockedKVCache, dtype: torch.dtype) -> None:
        self._batch = batch
        self._cache = cache
        self._dtype = dtype
        self._device = batch.block_tables.device
        parts = torch.arange(2 * cache.num_kv_heads, device=self._device)
        self._parts = parts.view(2, 1, -1, 1)

    def indices(self, window: int | None) -> StepIndices:
        """All of them, for layers with that window."""
        return StepIndices(self._write_index(), self._decode_groups(window), self._chunk_rows(window))

    def _write_index(self) -> torch.Tensor:
        size = self._cache.block_size
        slots = self._batch.slot_mapping[:, None]
        rows = (slots // size) * self._parts.numel() + self._parts.view(-1)
        return (rows * size + slots % size).reshape(-1)

    def _gather_index(self, tables: torch.Tensor) -> torch.Tensor:
        """From block tables (B, n) to cache rows in the order keys or values, B, head, n."""
        return (tables[None, :, None, :] * self._parts.numel() + self._parts).reshape(-1)

    def _num_blocks(self, row: int) -> int:
        return -(-self._batch.seq_lens[row] // self._cache.block_size)

    def _decode_groups(self, window: int | None) -> list[DecodeGroup]:
        cache = self._cache
        block_bytes = 2 * cache.num_kv_heads * cache.block_size * cache.head_dim * 4
        budget = _GATHERED_BYTES[self._device.type] // block_bytes
        sizes = [self._num_blocks(row) for row in range(self._batch.num_decodes)]
        return [self._decode_group(rows, window) for rows in group_rows(sizes, budget)]

    def _decode_group(self, rows: range | list[int], window: int | None) -> DecodeGroup:
        chosen = (
            slice(rows.start, rows.stop) if isinstance(rows, range) else torch.tensor(rows, device=self._device)
        )
        lengths = torch.tensor([self._batch.seq_lens[row] for row in rows], device=self._device)[:, None]
        num_blocks = max(self._num_blocks(row) for row in rows)
        keys = torch.arange(num_blocks * self._cache.block_size, device=self._device)
        hidden = keys >= lengths
        if window is not None:
            hidden |= keys < lengths - window
        mask = self._mask(hidden).repeat_interleave(self._cache.num_kv_heads, dim=0).unsqueeze(1)
        gather = self._gather_index(self._batch.block_tables[chosen, :num_blocks])
        return DecodeGroup(chosen, len(rows), gather, mask)

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, -torch.inf)

    def _chunk_rows(self, window: int | None) -> list[ChunkRow]:
        start, rows = self._batch.num_decodes, []
        for row in range(self._batch.num_decodes, len(self._batch.query_lens)):
            gather = self._gather_index(self._batch.block_tables[row : row + 1, : self._num_blocks(row)])
            rows.append(ChunkRow(gather, self._query_spans(row, start, window)))
            start += self._batch.query_lens[row]
        return rows

    def _query_spans(self, row: int, start: int, window: int | None) -> list[QuerySpan]:
        num_queries, seq_len = self._batch.query_lens[row], self._batch.seq_lens[row]
        num_cached = seq_len - num_queries
        spans = []
        for first in range(0, num_queries, _QUERIES_AT_ONCE):
            last = min(first + _QUERIES_AT_ONCE, num_queries)
            end_key = num_cached + last
            first_key = 0 if window is None else max(0, num_cached + first - window + 1)
            square = num_cached + first == 0 and (window is None or window >= end_key)
            mask = None if square else self._causal_mask(num_cached + first, first_key, end_key, window)
            spans.append(QuerySpan(start + first, start + last, first_key, end_key, mask))
        return spans

    def _causal_mask(self, first_query: int, first_key: int, end_key: int, window: int | None) -> torch.Tensor:
        """For the queries from position `first_query` to the end of the keys."""
        queries = torch.arange(first_query, end_key, device=self._device)[:, None]
        keys = torch.arange(first_key, end_key, device=self._device)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        return self._mask(hidden)
