"""One launch of every kernel for every configuration shipped, on tensors without memory: what the table lists."""

from collections.abc import Iterator

import torch

from vllm_obs.engine.kernels.triton.best_tokens import best_tokens, logprobs
from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.filtered_draw import DrawColumns, filtered_draw
from vllm_obs.engine.kernels.triton.kv_write import kv_write
from vllm_obs.engine.kernels.triton.launch import Launch
from vllm_obs.engine.kernels.triton.logit_edits import PenaltyColumns, RowTokens, logit_bias, penalties
from vllm_obs.engine.kernels.triton.paged_attention import (
    AttentionShape,
    RaggedRows,
    SplitBuffers,
    paged_attention,
)
from vllm_obs.engine.kernels.triton.qkv import HeadNorms, Places, qkv_split
from vllm_obs.engine.kernels.triton.rms_norm import rms_norm
from vllm_obs.engine.kernels.triton.rotary import rotary
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul
from vllm_obs.engine.kernels.triton.split_reduction import split_reduction
from vllm_obs.engine.kernels.triton.token_bitmask import token_bitmask

_BF16, _F32, _I32, _I64 = torch.bfloat16, torch.float32, torch.int32, torch.int64
_NUM_TOKENS, _NUM_ROWS, _VOCAB = 64, 8, 128256

Named = tuple[str, Launch]


def specimens(configs: Configs, capability: int) -> Iterator[Named]:
    """(name, launch) of each: attention by head size, kind and cache, the others in the shape of Llama 3 8B."""
    yield from _attention(configs, capability)
    yield from _layer(configs)
    yield from _sampling(configs)


def _empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _shape(head_dim: int, capability: int, *, is_bent: bool = False) -> AttentionShape:
    cap, window = (50.0, 4096) if is_bent else (None, None)
    return AttentionShape(
        32, 8, head_dim, head_dim**-0.5, window=window, soft_cap=cap, has_native_fp8=capability >= 89
    )


def _rows(max_query_len: int) -> RaggedRows:
    return RaggedRows(
        _empty(_I32, _NUM_ROWS, 128), _empty(_I32, _NUM_ROWS + 1), _empty(_I32, _NUM_ROWS), max_query_len
    )


def _attention(configs: Configs, capability: int) -> Iterator[Named]:
    for head_dim in (64, 128, 256):
        for kind, max_query_len in (("decode", 1), ("prefill", _NUM_TOKENS)):
            queries = _empty(_BF16, _NUM_TOKENS, 32 * head_dim)
            for dtype, stored in ((_BF16, "bf16"), (torch.uint8, "fp8")):
                cache = _empty(dtype, 1024, 2, 8, 16, head_dim)
                shape, name = _shape(head_dim, capability), f"paged_attention {kind} {head_dim} {stored}"
                yield name, paged_attention(queries, cache, queries, _rows(max_query_len), shape, configs)
        wide, cache = _empty(_F32, _NUM_TOKENS, 32 * head_dim), _empty(_F32, 1024, 2, 8, 16, head_dim)
        shape, name = _shape(head_dim, capability), f"paged_attention prefill {head_dim} fp32"
        yield name, paged_attention(wide, cache, wide, _rows(_NUM_TOKENS), shape, configs)
    cache, queries = _empty(_BF16, 1024, 2, 8, 16, 128), _empty(_BF16, _NUM_TOKENS, 32 * 128)
    shape = _shape(128, capability)
    splits = SplitBuffers.of(_NUM_TOKENS, shape, 16, torch.device("meta"))
    split = paged_attention(queries, cache, queries, _rows(1), shape, configs, splits)
    yield "paged_attention decode 128 bf16, 16 splits", split
    bent = _shape(128, capability, is_bent=True)
    yield (
        "paged_attention prefill 128 bf16, window, soft cap",
        paged_attention(queries, cache, queries, _rows(_NUM_TOKENS), bent, configs),
    )
    small = AttentionShape(8, 8, 32, 32**-0.5)
    tiny, few = _empty(_BF16, 1024, 2, 8, 16, 32), _empty(_BF16, _NUM_TOKENS, 8 * 32)
    yield "paged_attention any 32 bf16", paged_attention(few, tiny, few, _rows(1), small, configs)
    yield "split_reduction 128, 16 splits", split_reduction(splits, queries, configs)


def _layer(configs: Configs) -> Iterator[Named]:
    cache, shape = _empty(_BF16, 1024, 2, 8, 16, 128), _shape(128, 80)
    codes = _empty(torch.uint8, 1024, 2, 8, 16, 128)
    heads, slots = _empty(_BF16, _NUM_TOKENS, 48, 128), _empty(_I64, _NUM_TOKENS)
    yield "kv_write bf16", kv_write(heads[:, 32:40], heads[:, 40:], slots, cache, configs)
    yield "kv_write fp8", kv_write(heads[:, 32:40], heads[:, 40:], slots, codes, configs)
    for hidden in (1024, 4096):
        stream, weight = _empty(_F32, _NUM_TOKENS, hidden), _empty(_F32, hidden)
        made = _empty(_BF16, _NUM_TOKENS, hidden)
        yield f"rms_norm {hidden}", rms_norm(stream, made, weight, 1e-5, made, configs)
    rotations = _empty(_F32, 8192, 64, 2)
    yield "rotary 128", rotary(heads, rotations, slots, 40, configs)
    norms = HeadNorms(_empty(_F32, 128), _empty(_F32, 128), 1e-6)
    places, qkv = Places(slots, slots, rotations), heads.flatten(1)
    queries = _empty(_BF16, _NUM_TOKENS, 32 * 128)
    yield "qkv bf16", qkv_split(qkv, None, places, queries, cache, shape, configs)
    yield "qkv fp8, head norms", qkv_split(qkv, norms, places, queries, codes, shape, configs)
    yield (
        "silu_mul 14336",
        silu_mul(_empty(_BF16, _NUM_TOKENS, 2 * 14336), _empty(_BF16, _NUM_TOKENS, 14336), configs),
    )


def _sampling(configs: Configs) -> Iterator[Named]:
    logits, numbers = _empty(_F32, _NUM_ROWS, _VOCAB), _empty(_I64, _NUM_ROWS)
    floats, rows = _empty(_F32, _NUM_ROWS), _empty(_I32, _NUM_ROWS)
    yield "token_bitmask", token_bitmask(logits, rows, _empty(_I32, _NUM_ROWS, _VOCAB // 32), configs)
    seen = RowTokens(rows, _empty(_I32, _NUM_ROWS + 1), _empty(_I32, 4096), 4096)
    counts = _empty(_F32, 4096)
    yield "penalties", penalties(logits, seen, PenaltyColumns(counts, floats, floats, floats), configs)
    yield "logit_bias", logit_bias(logits, seen, counts, configs)
    yield "best_tokens", best_tokens(logits, numbers, floats, configs)
    outputs = _empty(_I32, _NUM_ROWS, 21), _empty(_F32, _NUM_ROWS, 21), rows
    yield "logprobs, 20 best", logprobs(logits, numbers, outputs, 20, configs)
    columns = DrawColumns(floats, rows, floats, floats, numbers, numbers, numbers)
    yield "filtered_draw", filtered_draw(logits, columns, numbers, floats, configs)
