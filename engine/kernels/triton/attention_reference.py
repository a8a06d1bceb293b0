"""Paged attention and its parts in plain torch: what the kernels of the same names are held to."""

import torch

from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape, RaggedRows


def reference_attention(
    queries: torch.Tensor,
    layer_cache: torch.Tensor,
    rows: RaggedRows,
    shape: AttentionShape,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """(T, heads * head_dim) in `dtype`, which everything is computed in, a row at a time."""
    output = torch.zeros((len(queries), shape.num_heads * shape.head_dim), dtype=dtype, device=queries.device)
    starts = rows.query_starts.tolist()
    for row, seq_len in enumerate(rows.seq_lens.tolist()):
        if starts[row] < starts[row + 1]:
            span = slice(starts[row], starts[row + 1])
            keys, values = reference_cached(layer_cache, rows.block_tables[row], seq_len, shape, dtype)
            output[span] = _attend(queries[span].to(dtype), keys, values, shape)
    return output


def reference_cached(
    layer_cache: torch.Tensor, table: torch.Tensor, seq_len: int, shape: AttentionShape, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (kv_heads, seq_len, head_dim) of one sequence; uint8 holds codes of float8_e4m3fn."""
    blocks = layer_cache[table[: -(-seq_len // layer_cache.shape[3])].long()]
    if blocks.dtype == torch.uint8:
        blocks = blocks.view(torch.float8_e4m3fn)
        factors = torch.tensor([shape.key_scale, shape.value_scale], dtype=dtype, device=blocks.device)
    else:
        factors = torch.ones(2, dtype=dtype, device=blocks.device)
    wide = blocks.to(dtype).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :seq_len]
    keys, values = wide * factors[:, None, None, None]
    return keys, values


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """(queries, heads * head_dim) for the last tokens of one sequence."""
    group = shape.num_heads // shape.num_kv_heads
    split = queries.view(len(queries), shape.num_heads, shape.head_dim).transpose(0, 1)
    scores = split @ keys.repeat_interleave(group, 0).transpose(1, 2) * shape.scale
    if shape.soft_cap is not None:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    key = torch.arange(keys.shape[1], device=keys.device)
    position = key[keys.shape[1] - len(queries) :, None]
    is_seen = key <= position
    if shape.window is not None:
        is_seen &= key > position - shape.window
    shares = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
    return (shares @ values.repeat_interleave(group, 0)).transpose(0, 1).flatten(1)


def reference_kv_write(
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    layer_cache: torch.Tensor,
    scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Put keys and values (T, kv_heads, head_dim) into their slots; tokens with slot -1 nowhere."""
    size = layer_cache.shape[3]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for part, (source, scale) in enumerate(zip((keys, values), scales, strict=True)):
                layer_cache[slot // size, part, :, slot % size] = _stored(source[token], layer_cache.dtype, scale)


def _stored(values: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    if dtype != torch.uint8:
        return values.to(dtype)
    scaled = (values.float() * torch.tensor(1.0 / scale)).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)
