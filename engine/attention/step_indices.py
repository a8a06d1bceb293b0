"""Where one step's tokens go in the KV cache and what each row reads from it, computed once for all layers."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache


@dataclass
class DecodeGroup:
    """Rows of one query token and similar lengths, attended to together.

    rows: int64 (B,), or None when the group is every decode row in order.
    gather: int64 (2 * B * kv_heads * blocks,) into the cache seen as (…, block_size * head_dim).
    mask: float32 (B * kv_heads, 1, tokens), 0 or -inf.
    """

    rows: torch.Tensor | None
    num_rows: int
    gather: torch.Tensor
    mask: torch.Tensor


@dataclass
class ChunkRow:
    """A row of several query tokens: its place in the flat token axis, its length in the cache, and its gather."""

    start: int
    num_queries: int
    seq_len: int
    gather: torch.Tensor


@dataclass
class StepIndices:
    """One step's indices. write: int64 (T * 2 * kv_heads,) into the cache seen as (…, head_dim)."""

    write: torch.Tensor
    decodes: list[DecodeGroup]
    chunks: list[ChunkRow]


def step_indices(batch: AttentionBatch, cache: BlockedKVCache, window: int | None) -> StepIndices:
    """Turn a step's block tables and slots into indices for that cache; `window` bounds how far back rows look."""
    return StepIndices(
        write=_write_index(batch.slot_mapping, cache),
        decodes=_decode_groups(batch, cache, window),
        chunks=_chunk_rows(batch, cache),
    )


def _write_index(slots: torch.Tensor, cache: BlockedKVCache) -> torch.Tensor:
    blocks, offsets = slots // cache.block_size, slots % cache.block_size
    heads = torch.arange(2 * cache.num_kv_heads, device=slots.device)
    rows = blocks[:, None] * (2 * cache.num_kv_heads) + heads
    return (rows * cache.block_size + offsets[:, None]).reshape(-1)


def _gather_index(tables: torch.Tensor, cache: BlockedKVCache) -> torch.Tensor:
    """From block tables (B, n) to rows in the order keys or values, B, head, n."""
    parts = torch.arange(2, device=tables.device).view(2, 1, 1, 1) * cache.num_kv_heads
    heads = torch.arange(cache.num_kv_heads, device=tables.device).view(1, 1, -1, 1)
    return (tables[None, :, None, :] * (2 * cache.num_kv_heads) + parts + heads).reshape(-1)


def _decode_groups(batch: AttentionBatch, cache: BlockedKVCache, window: int | None) -> list[DecodeGroup]:
    lengths = batch.seq_lens[: batch.num_decodes]
    if not lengths:
        return []
    return [_decode_group(batch, cache, list(range(len(lengths))), window)]


def _decode_group(
    batch: AttentionBatch, cache: BlockedKVCache, rows: list[int], window: int | None
) -> DecodeGroup:
    device = batch.block_tables.device
    lengths = torch.tensor([batch.seq_lens[row] for row in rows], device=device)
    num_blocks = -(-int(lengths.max()) // cache.block_size)
    everyone = len(rows) == batch.num_decodes
    selected = None if everyone else torch.tensor(rows, device=device)
    tables = batch.block_tables[: batch.num_decodes] if selected is None else batch.block_tables[selected]
    position = torch.arange(num_blocks * cache.block_size, device=device)
    hidden = position >= lengths[:, None]
    if window is not None:
        hidden |= position < lengths[:, None] - window
    mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
    mask = mask.repeat_interleave(cache.num_kv_heads, dim=0).unsqueeze(1)
    return DecodeGroup(selected, len(rows), _gather_index(tables[:, :num_blocks], cache), mask)


def _chunk_rows(batch: AttentionBatch, cache: BlockedKVCache) -> list[ChunkRow]:
    start, rows = batch.num_decodes, []
    for row in range(batch.num_decodes, len(batch.query_lens)):
        num_blocks = -(-batch.seq_lens[row] // cache.block_size)
        gather = _gather_index(batch.block_tables[row : row + 1, :num_blocks], cache)
        rows.append(ChunkRow(start, batch.query_lens[row], batch.seq_lens[row], gather))
        start += batch.query_lens[row]
    return rows
