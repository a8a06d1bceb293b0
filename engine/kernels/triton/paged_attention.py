"""Attention of ragged query rows over the paged KV cache: prefill, chunks and decode in one kernel."""

from dataclasses import dataclass, replace

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.fp8 import decode_e4m3
from vllm_obs.engine.kernels.triton.launch import (
    Launch,
    LaunchConfig,
    Number,
    Pointer,
    Tile,
    device_function,
    is_interpreted,
    padded,
)
from vllm_obs.engine.kernels.triton.launch import kernel as jit_kernel

_LOG2_E = tl.constexpr(1.4426950408889634)


@device_function
def row_of_tile(query_starts: "Pointer", num_rows: "Number", tile: "Number", TILE_QUERIES: tl.constexpr) -> Tile:
    """The row a tile belongs to, by bisection; row r owns the tiles from starts[r] // TILE_QUERIES + r on.

    That gives each row as many tiles as it can need, at most one too many, from sizes the host knows.
    """
    low = tile * 0
    high = low + num_rows
    while high - low > 1:
        middle = (low + high) // 2
        is_reached = tl.load(query_starts + middle) // TILE_QUERIES + middle <= tile
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, middle)
    return low


@device_function
def cached_tile(
    layer_cache: "Pointer", offsets: "Tile", seen: "Tile", FP8: tl.constexpr, NATIVE_FP8: tl.constexpr
) -> Tile:
    """Keys or values; what lies behind a row's newest token is never read, so no stale NaN gets in."""
    loaded = tl.load(layer_cache + offsets, mask=seen, other=0)
    if not FP8:
        return loaded
    elif NATIVE_FP8:  # noqa: RET505 - Triton takes an early return for one more way out of the whole function
        return loaded.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        return decode_e4m3(loaded)


@jit_kernel
def paged_attention_kernel(
    queries: "Pointer",
    layer_cache: "Pointer",
    output: "Pointer",
    partial: "Pointer",
    partial_stats: "Pointer",
    block_tables: "Pointer",
    query_starts: "Pointer",
    seq_lens: "Pointer",
    num_rows: "Number",
    table_stride: "Number",
    query_stride: "Number",
    scale: "Number",
    soft_cap: "Number",
    value_scale: "Number",
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """One program: some queries of a row, all query heads of one key head, one split of the keys they see.

    The softmax is taken as it goes (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018;
    Dao et al., "FlashAttention", 2022); `split_reduction` puts splits together (Dao et al., "Flash-Decoding",
    2023). Lines of a tile run over queries, then over the heads of a group, so each key is loaded once for all.
    """
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    tile_queries: tl.constexpr = BLOCK_M // group
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = row_of_tile(query_starts, num_rows, tile, tile_queries)
    row_start = tl.load(query_starts + row)
    num_queries = tl.load(query_starts + row + 1) - row_start
    first_query = (tile - row_start // tile_queries - row) * tile_queries
    if first_query >= num_queries:
        return
    seq_len = tl.load(seq_lens + row)
    line = tl.arange(0, BLOCK_M)
    query = first_query + line // group
    head = kv_head * group + line % group
    is_line = (line < tile_queries * group) & (query < num_queries)
    position = seq_len - num_queries + query
    feature = tl.arange(0, HEAD_BLOCK)
    is_feature = feature < HEAD_DIM
    token = (row_start + query).to(tl.int64)
    query_tile = tl.load(
        queries + token[:, None] * query_stride + head[:, None] * HEAD_DIM + feature[None, :],
        mask=is_line[:, None] & is_feature[None, :],
        other=0.0,
    )
    dtype = query_tile.dtype
    if WIDEN:
        query_tile = query_tile.to(tl.float32)

    end_key = seq_len - num_queries + tl.minimum(first_query + tile_queries, num_queries)
    first_step = 0
    if WINDOW > 0:
        first_step = tl.maximum(seq_len - num_queries + first_query - WINDOW + 1, 0) // BLOCK_N
    end_step = tl.cdiv(end_key, BLOCK_N)
    share = tl.cdiv(end_step - first_step, NUM_SPLITS)
    begin = first_step + split * share
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, HEAD_BLOCK], tl.float32)
    for step in range(begin, tl.minimum(begin + share, end_step)):
        key = step * BLOCK_N + tl.arange(0, BLOCK_N)
        is_key = key < end_key
        block = tl.load(block_tables + row * table_stride + key // CACHE_BLOCK, mask=is_key, other=0)
        place = block.to(tl.int64) * (2 * NUM_KV_HEADS) + kv_head
        place = (place * CACHE_BLOCK + key % CACHE_BLOCK) * HEAD_DIM
        keys = cached_tile(
            layer_cache, place[None, :] + feature[:, None], is_key[None, :] & is_feature[:, None], FP8, NATIVE_FP8
        ).to(dtype)
        if WIDEN:
            keys = keys.to(tl.float32)
        scores = tl.dot(query_tile, keys, input_precision="ieee") * scale
        if HAS_SOFT_CAP:
            scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * _LOG2_E / soft_cap)) + 1.0))
        is_seen = is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            is_seen &= key[None, :] > position[:, None] - WINDOW
        scores = tl.where(is_seen, scores * _LOG2_E, float("-inf"))
        grown = tl.maximum(largest, tl.max(scores, 1))
        pivot = tl.where(grown == float("-inf"), 0.0, grown)
        weights = tl.exp2(scores - pivot[:, None])
        kept = tl.exp2(largest - pivot)
        total = total * kept + tl.sum(weights, 1)
        values = cached_tile(
            layer_cache,
            place[:, None] + NUM_KV_HEADS * CACHE_BLOCK * HEAD_DIM + feature[None, :],
            is_key[:, None] & is_feature[None, :],
            FP8,
            NATIVE_FP8,
        ).to(dtype)
        shares = weights.to(dtype)
        if WIDEN:
            values, shares = values.to(tl.float32), shares.to(tl.float32)
        sums = sums * kept[:, None] + tl.dot(shares, values, input_precision="ieee")
        largest = grown

    place_out = token * NUM_HEADS + head
    if NUM_SPLITS == 1:
        sums = sums * (value_scale / tl.where(is_line, total, 1.0))[:, None]
        tl.store(
            output + place_out[:, None] * HEAD_DIM + feature[None, :],
            sums.to(output.dtype.element_ty),
            mask=is_line[:, None] & is_feature[None, :],
        )
    else:
        place_out = place_out * NUM_SPLITS + split
        tl.store(
            partial + place_out[:, None] * HEAD_DIM + feature[None, :],
            sums * value_scale,
            mask=is_line[:, None] & is_feature[None, :],
        )
        tl.store(partial_stats + place_out * 2, largest, mask=is_line)
        tl.store(partial_stats + place_out * 2 + 1, total, mask=is_line)


@dataclass(frozen=True)
class AttentionShape:
    """What a layer's attention is. window: how many keys a query sees, itself among them, or None.

    soft_cap: scores are bent to ±that by a tangent, or None. key_scale, value_scale: what codes of an fp8 cache
    (uint8) are multiplied by. `has_native_fp8`: the card converts e4m3 by itself.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0
    has_native_fp8: bool = False


@dataclass(frozen=True)
class RaggedRows:
    """Which queries belong together, on the device.

    block_tables: int (B, max blocks). query_starts: int32 (B + 1,), where each row's queries begin, then T.
    seq_lens: int32 (B,), keys of each row, its queries among them. max_query_len: what the host knows of the rows.
    """

    block_tables: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    max_query_len: int


@dataclass(frozen=True)
class SplitBuffers:
    """Where splits leave what they found: sums float32 (T, heads, splits, head_dim), stats (T, heads, splits, 2).

    stats: the largest score (times log2 e) and the sum of the weights relative to it.
    """

    sums: torch.Tensor
    stats: torch.Tensor

    @classmethod
    def of(cls, num_tokens: int, shape: AttentionShape, num_splits: int, device: torch.device) -> "SplitBuffers":
        """Unwritten buffers."""
        size = (num_tokens, shape.num_heads, num_splits)
        sums = torch.empty((*size, shape.head_dim), dtype=torch.float32, device=device)
        return cls(sums, torch.empty((*size, 2), dtype=torch.float32, device=device))


def num_splits_for(num_tiles: int, num_kv_heads: int, max_seq_len: int, num_processors: int) -> int:
    """Into how many parts keys are split so that a card of that many multiprocessors has work for each.

    A part has 256 keys at least; prompts and large batches are not split.
    """
    programs = max(num_tiles * num_kv_heads, 1)
    wanted = min(2 * num_processors // programs, -(-max_seq_len // 256), 64)
    return 1 << max(wanted, 1).bit_length() - 1


def paged_attention(
    queries: torch.Tensor,
    layer_cache: torch.Tensor,
    output: torch.Tensor,
    rows: RaggedRows,
    shape: AttentionShape,
    configs: Configs,
    splits: SplitBuffers | None = None,
) -> Launch:
    """queries (T, heads * head_dim), rows strided; layer_cache (blocks, 2, kv_heads, block_size, head_dim).

    Without `splits` it writes output (T, heads * head_dim); with them only those, for `split_reduction`.
    """
    config = _config(queries.dtype, rows, shape, configs)
    num_rows = len(rows.seq_lens)
    tile_queries = config.sizes["BLOCK_M"] // (shape.num_heads // shape.num_kv_heads)
    num_tiles = num_rows + len(queries) // tile_queries if len(queries) else 0
    num_splits = 1 if splits is None else splits.sums.shape[2]
    is_fp8 = layer_cache.dtype == torch.uint8
    return Launch(
        paged_attention_kernel,
        (num_tiles, shape.num_kv_heads, num_splits),
        {
            "queries": queries,
            "layer_cache": layer_cache,
            "output": output,
            "partial": output if splits is None else splits.sums,
            "partial_stats": output if splits is None else splits.stats,
            "block_tables": rows.block_tables,
            "query_starts": rows.query_starts,
            "seq_lens": rows.seq_lens,
            "num_rows": num_rows,
            "table_stride": rows.block_tables.stride(0),
            "query_stride": queries.stride(0),
            "scale": shape.scale * (shape.key_scale if is_fp8 else 1.0),
            "soft_cap": shape.soft_cap or 1.0,
            "value_scale": shape.value_scale if is_fp8 else 1.0,
        },
        {
            "NUM_HEADS": shape.num_heads,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "HEAD_BLOCK": max(padded(shape.head_dim), 16),
            "CACHE_BLOCK": layer_cache.shape[3],
            "WINDOW": shape.window or 0,
            "HAS_SOFT_CAP": shape.soft_cap is not None,
            "FP8": is_fp8,
            "NATIVE_FP8": shape.has_native_fp8,
            "NUM_SPLITS": num_splits,
            "WIDEN": is_interpreted(paged_attention_kernel),
        },
        config,
    )


def _config(dtype: torch.dtype, rows: RaggedRows, shape: AttentionShape, configs: Configs) -> LaunchConfig:
    """The card's, but with room for a query of all heads of a group."""
    kind = "decode" if rows.max_query_len <= 1 else "prefill"
    shape_class = "wide" if dtype == torch.float32 else f"{kind}_{padded(shape.head_dim)}"
    config = configs.of("paged_attention", shape_class)
    num_lines = max(config.sizes["BLOCK_M"], padded(shape.num_heads // shape.num_kv_heads))
    return replace(config, sizes={**config.sizes, "BLOCK_M": num_lines})
