"""A layer's qkv product taken apart: heads normed and rotated, queries set apart, keys and values cached."""

from dataclasses import dataclass

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.kv_write import store_cached
from vllm_obs.engine.kernels.triton.launch import (
    Launch,
    Number,
    Pointer,
    Tile,
    device_function,
    kernel,
    padded,
)
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape
from vllm_obs.engine.kernels.triton.rotary import rotated


@device_function
def normed_pairs(
    first: "Tile",
    second: "Tile",
    weight: "Pointer",
    pair: "Tile",
    kept: "Tile",
    eps: "Number",
    HEAD_DIM: tl.constexpr,
) -> "Tile":
    """A head over its root mean square, times the norm's weight."""
    factor = 1.0 / tl.sqrt(tl.sum(first * first + second * second, 0) / HEAD_DIM + eps)
    first *= factor * tl.load(weight + 2 * pair, mask=kept, other=0.0).to(tl.float32)
    second *= factor * tl.load(weight + 2 * pair + 1, mask=kept, other=0.0).to(tl.float32)
    return first, second


@kernel
def qkv_kernel(
    qkv: "Pointer",
    query_weight: "Pointer",
    key_weight: "Pointer",
    rotations: "Pointer",
    positions: "Pointer",
    slots: "Pointer",
    queries: "Pointer",
    layer_cache: "Pointer",
    qkv_stride: "Number",
    eps: "Number",
    inverse_key_scale: "Number",
    inverse_value_scale: "Number",
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIR_BLOCK: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    FP8: tl.constexpr,
) -> None:
    """One program: one head of one token; query heads first, then keys, then values."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, PAIR_BLOCK)
    kept = pair < HEAD_DIM // 2
    source = qkv + token * qkv_stride + head * HEAD_DIM + 2 * pair
    first = tl.load(source, mask=kept, other=0.0).to(tl.float32)
    second = tl.load(source + 1, mask=kept, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        if HAS_NORM:
            weight = query_weight
            if head >= NUM_HEADS:
                weight = key_weight
            first, second = normed_pairs(first, second, weight, pair, kept, eps, HEAD_DIM)
        position = tl.load(positions + token)
        first, second = rotated(first, second, rotations + position * HEAD_DIM, pair, kept)
    if head < NUM_HEADS:
        target = queries + (token * NUM_HEADS + head) * HEAD_DIM + 2 * pair
        tl.store(target, first.to(queries.dtype.element_ty), mask=kept)
        tl.store(target + 1, second.to(queries.dtype.element_ty), mask=kept)
    else:
        slot = tl.load(slots + token)
        # A token without a slot fills up a CUDA graph's batch.
        kept = kept & (slot >= 0)
        inverse_scale = inverse_key_scale
        if head >= NUM_HEADS + NUM_KV_HEADS:
            inverse_scale = inverse_value_scale
        # Of a block, all key heads come first, then all value heads, as in the product.
        place = slot // CACHE_BLOCK * (2 * NUM_KV_HEADS) + head - NUM_HEADS
        place = (place * CACHE_BLOCK + slot % CACHE_BLOCK) * HEAD_DIM + 2 * pair
        store_cached(layer_cache, place, first, kept, inverse_scale, FP8)
        store_cached(layer_cache, place + 1, second, kept, inverse_scale, FP8)


@dataclass(frozen=True)
class HeadNorms:
    """The norms of query and key heads before they are rotated: weights (head_dim,)."""

    query_weight: torch.Tensor
    key_weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class Places:
    """Where a step's tokens stand: positions int64 (T,), slots int64 (T,) in the cache, -1: nowhere.

    rotations: float32 (positions, head_dim / 2, 2).
    """

    positions: torch.Tensor
    slots: torch.Tensor
    rotations: torch.Tensor


def qkv_split(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    places: Places,
    queries: torch.Tensor,
    layer_cache: torch.Tensor,
    shape: AttentionShape,
    configs: Configs,
) -> Launch:
    """qkv (T, (heads + 2 * kv_heads) * head_dim), rows strided → queries (T, heads * head_dim), and the cache."""
    return Launch(
        qkv_kernel,
        (len(qkv), shape.num_heads + 2 * shape.num_kv_heads),
        {
            "qkv": qkv,
            "query_weight": qkv if norms is None else norms.query_weight,
            "key_weight": qkv if norms is None else norms.key_weight,
            "rotations": places.rotations,
            "positions": places.positions,
            "slots": places.slots,
            "queries": queries,
            "layer_cache": layer_cache,
            "qkv_stride": qkv.stride(0),
            "eps": 0.0 if norms is None else norms.eps,
            "inverse_key_scale": 1.0 / shape.key_scale,
            "inverse_value_scale": 1.0 / shape.value_scale,
        },
        {
            "NUM_HEADS": shape.num_heads,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "PAIR_BLOCK": padded(shape.head_dim // 2),
            "CACHE_BLOCK": layer_cache.shape[3],
            "HAS_NORM": norms is not None,
            "FP8": layer_cache.dtype == torch.uint8,
        },
        configs.of("qkv"),
    )
