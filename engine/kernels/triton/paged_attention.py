"""Attention of ragged query rows over the paged KV cache: prefill, chunks and decode in one kernel."""

from dataclasses import dataclass, replace

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.attention_tiles import (
    LOG2_E,
    bent,
    cached_tile,
    keys_of_step,
    lines_of_tile,
    product,
    queries_of_tile,
    seen,
    softmax_step,
    steps_of_split,
    store_attended,
    store_part,
)
from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import (
    Launch,
    LaunchConfig,
    Number,
    Pointer,
    is_interpreted,
    padded,
)
from vllm_obs.engine.kernels.triton.launch import kernel as jit_kernel


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
    kv_head, split = tl.program_id(1), tl.program_id(2)
    row, row_start, num_queries, first_query = queries_of_tile(
        query_starts, num_rows, tl.program_id(0), BLOCK_M // group
    )
    if first_query >= num_queries:
        return
    query, head, is_line = lines_of_tile(first_query, num_queries, kv_head, group, BLOCK_M)
    first_position = tl.load(seq_lens + row) - num_queries
    feature = tl.arange(0, HEAD_BLOCK)
    is_feature = feature < HEAD_DIM
    token = (row_start + query).to(tl.int64)
    query_tile = tl.load(
        queries + token[:, None] * query_stride + head[:, None] * HEAD_DIM + feature[None, :],
        mask=is_line[:, None] & is_feature[None, :],
        other=0.0,
    )
    end_key = first_position + tl.minimum(first_query + BLOCK_M // group, num_queries)
    begin, end = steps_of_split(first_position + first_query, end_key, split, WINDOW, NUM_SPLITS, BLOCK_N)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, HEAD_BLOCK], tl.float32)
    for step in range(begin, end):
        key, is_key, place = keys_of_step(
            block_tables + row * table_stride, end_key, step, kv_head, NUM_KV_HEADS, HEAD_DIM, CACHE_BLOCK, BLOCK_N
        )
        keys = cached_tile(
            layer_cache, place[None, :] + feature[:, None], is_key[None, :] & is_feature[:, None], FP8, NATIVE_FP8
        ).to(query_tile.dtype)
        scores = bent(product(query_tile, keys, WIDEN) * scale, soft_cap, HAS_SOFT_CAP)
        is_seen = is_key[None, :] & seen(key[None, :], (first_position + query)[:, None], WINDOW)
        scores = tl.where(is_seen, scores * LOG2_E, float("-inf"))
        weights, kept, largest, total = softmax_step(scores, largest, total)
        place += NUM_KV_HEADS * CACHE_BLOCK * HEAD_DIM
        values = cached_tile(
            layer_cache, place[:, None] + feature[None, :], is_key[:, None] & is_feature[None, :], FP8, NATIVE_FP8
        ).to(query_tile.dtype)
        sums = sums * kept[:, None] + product(weights.to(query_tile.dtype), values, WIDEN)

    place_out = (token * NUM_HEADS + head) * NUM_SPLITS + split
    if NUM_SPLITS == 1:
        store_attended(output, place_out, sums, value_scale, total, is_line, HEAD_DIM)
    else:
        store_part(partial, partial_stats, place_out, sums * value_scale, largest, total, is_line, HEAD_DIM)


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
