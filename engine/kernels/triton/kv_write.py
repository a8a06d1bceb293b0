"""A step's keys and values put into the paged cache, by slots; as they are or as fp8 codes."""

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.fp8 import encode_e4m3
from vllm_obs.engine.kernels.triton.launch import Launch, Number, Pointer, Tile, device_function, kernel, padded


@device_function
def store_cached(
    layer_cache: "Pointer", place: "Tile", values: "Tile", kept: "Tile", inverse_scale: "Number", FP8: tl.constexpr
) -> None:
    """Store float32 values in the cache's type."""
    if FP8:
        tl.store(layer_cache + place, encode_e4m3(values * inverse_scale), mask=kept)
    else:
        tl.store(layer_cache + place, values.to(layer_cache.dtype.element_ty), mask=kept)


@kernel
def kv_write_kernel(
    keys: "Pointer",
    values: "Pointer",
    slots: "Pointer",
    layer_cache: "Pointer",
    key_stride: "Number",
    value_stride: "Number",
    inverse_key_scale: "Number",
    inverse_value_scale: "Number",
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CACHE_BLOCK: tl.constexpr,
    FP8: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
) -> None:
    """One program: all key heads, or all value heads, of one token."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    feature = tl.arange(0, HEAD_BLOCK)[None, :]
    kept = (head < NUM_KV_HEADS) & (feature < HEAD_DIM)
    offsets = head * HEAD_DIM + feature
    if part == 0:
        source = keys + token * key_stride
        inverse_scale = inverse_key_scale
    else:
        source = values + token * value_stride
        inverse_scale = inverse_value_scale
    loaded = tl.load(source + offsets, mask=kept, other=0.0).to(tl.float32)
    place = (slot // CACHE_BLOCK * 2 + part) * NUM_KV_HEADS + head
    place = (place * CACHE_BLOCK + slot % CACHE_BLOCK) * HEAD_DIM + feature
    store_cached(layer_cache, place, loaded, kept, inverse_scale, FP8)


def kv_write(
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    layer_cache: torch.Tensor,
    configs: Configs,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Launch:
    """keys, values (T, kv_heads, head_dim), strided; slots int64 (T,), block * block_size + offset; -1: none.

    layer_cache: (blocks, 2, kv_heads, block_size, head_dim); as uint8 it gets codes of the values over `scales`.
    """
    _, num_kv_heads, head_dim = keys.shape
    return Launch(
        kv_write_kernel,
        (len(keys), 2),
        {
            "keys": keys,
            "values": values,
            "slots": slots,
            "layer_cache": layer_cache,
            "key_stride": keys.stride(0),
            "value_stride": values.stride(0),
            "inverse_key_scale": 1.0 / scales[0],
            "inverse_value_scale": 1.0 / scales[1],
        },
        {
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "CACHE_BLOCK": layer_cache.shape[3],
            "FP8": layer_cache.dtype == torch.uint8,
            "HEADS_BLOCK": padded(num_kv_heads),
            "HEAD_BLOCK": padded(head_dim),
        },
        configs.of("kv_write"),
    )
