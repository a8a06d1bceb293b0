"""Checks of attention over the paged cache and of writing into it."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from gpu_card import Card
from gpu_differences import TOLERANCES, Found, difference, num_unequal, on, unwritten
from kernel_cases import cache_case

from vllm_obs.engine.kernels.triton.attention_reference import reference_attention, reference_kv_write
from vllm_obs.engine.kernels.triton.kv_write import kv_write
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape, SplitBuffers, paged_attention
from vllm_obs.engine.kernels.triton.split_reduction import split_reduction

BLOCK = 16
MIXED = [(1, 600), (0, 0), (300, 0), (37, 411), (1, 0), (128, 128)]
DECODES = [(1, 2047), (1, 15), (1, 16), (1, 700)]
DRY_MIXED, DRY_DECODES = [(1, 6), (0, 0), (9, 3)], [(1, 20), (1, 0)]
NATIVE_FP8 = 89


class Case(NamedTuple):
    """An attention: dtypes of queries and cache, and what is special about it."""

    name: str
    head_dim: int
    lengths: str
    dtype: torch.dtype = torch.bfloat16
    is_fp8: bool = False
    num_splits: int = 1
    window: int | None = None
    soft_cap: float | None = None


CASES = (
    Case("decode 128 bf16", 128, "decodes"),
    Case("decode 128 bf16, 8 splits", 128, "decodes", num_splits=8),
    Case("decode 128 fp8", 128, "decodes", is_fp8=True),
    Case("prefill 128 bf16", 128, "mixed"),
    Case("prefill 128 fp8", 128, "mixed", is_fp8=True),
    Case("prefill 128 fp16, window, soft cap", 128, "mixed", torch.float16, window=200, soft_cap=30.0),
    Case("prefill 64 bf16", 64, "mixed"),
    Case("decode 64 bf16", 64, "decodes"),
    Case("prefill 256 bf16", 256, "mixed"),
    Case("decode 256 bf16", 256, "decodes"),
    Case("prefill 80 bf16", 80, "mixed"),
    Case("prefill 128 fp32", 128, "mixed", torch.float32),
)


def attention_checks(card: Card) -> Iterator[Found]:
    """All of them; a dry run has small heads."""
    for case in CASES[:3] if card.is_dry else CASES:
        yield f"paged_attention {case.name}", TOLERANCES[case.dtype], partial(_attention, card, case)
    for stored, word in ((torch.bfloat16, "bf16"), (torch.uint8, "fp8")):
        yield f"kv_write {word}", 0.0, partial(_kv_write, card, stored)


def _attention(card: Card, case: Case) -> float:
    lengths = {"mixed": DRY_MIXED if card.is_dry else MIXED, "decodes": DRY_DECODES if card.is_dry else DECODES}
    head_dim, heads = (16, 4) if card.is_dry else (case.head_dim, 32)
    shape = AttentionShape(
        heads,
        heads // 4,
        head_dim,
        head_dim**-0.5,
        case.window,
        case.soft_cap,
        key_scale=0.5 if case.is_fp8 else 1.0,
        value_scale=2.0 if case.is_fp8 else 1.0,
        has_native_fp8=card.capability >= NATIVE_FP8 and not card.is_dry,
    )
    stored = torch.uint8 if case.is_fp8 else case.dtype
    made = cache_case(lengths[case.lengths], shape, BLOCK, stored)
    queries = torch.randn(made.num_tokens, heads * head_dim).to(case.dtype)
    rows, cache = on(card.device, made.rows), made.layer_cache.to(card.device)
    output = unwritten(*queries.shape, dtype=case.dtype, device=card.device)
    splits = None
    if case.num_splits > 1:
        splits = SplitBuffers.of(made.num_tokens, shape, case.num_splits, card.device)
    paged_attention(queries.to(card.device), cache, output, rows, shape, card.configs, splits).run()
    if splits is not None:
        split_reduction(splits, output, card.configs).run()
    return difference(output, reference_attention(queries, made.layer_cache, made.rows, shape))


def _kv_write(card: Card, stored: torch.dtype) -> float:
    num_tokens, kv_heads, head_dim = (5, 2, 16) if card.is_dry else (200, 8, 128)
    heads = 4 * torch.randn(num_tokens, 2 * kv_heads, head_dim).bfloat16()
    slots = torch.randperm(num_tokens + 40)[:num_tokens]
    slots[num_tokens // 2] = -1
    cache = unwritten(
        -(-(num_tokens + 40) // BLOCK), 2, kv_heads, BLOCK, head_dim, dtype=stored, device=torch.device("cpu")
    )
    expected, found = cache.clone(), cache.to(card.device)
    keys, values, scales = heads[:, :kv_heads], heads[:, kv_heads:], (0.5, 2.0)
    reference_kv_write(keys, values, slots, expected, scales)
    moved = heads.to(card.device)
    kv_write(moved[:, :kv_heads], moved[:, kv_heads:], slots.to(card.device), found, card.configs, scales).run()
    return num_unequal(found.view(torch.uint8), expected.view(torch.uint8))
