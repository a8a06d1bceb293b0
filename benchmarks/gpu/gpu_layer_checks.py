"""Checks of what surrounds attention in a layer."""

from collections.abc import Iterator
from functools import partial

import torch
from gpu_card import Card
from gpu_differences import TOLERANCES, Found, difference, on, unwritten

from vllm_obs.engine.kernels.triton.layer_reference import (
    reference_qkv_split,
    reference_rms_norm,
    reference_rotary,
    reference_silu_mul,
)
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape
from vllm_obs.engine.kernels.triton.qkv import HeadNorms, Places, qkv_split
from vllm_obs.engine.kernels.triton.rms_norm import rms_norm
from vllm_obs.engine.kernels.triton.rotary import rotary
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul

_BF16 = torch.bfloat16
MAX_POSITIONS = 500


def layer_checks(card: Card) -> Iterator[Found]:
    """Of both widths that have a configuration."""
    allowed = TOLERANCES[_BF16]
    for hidden in (64,) if card.is_dry else (1024, 4096):
        yield f"rms_norm {hidden}", allowed, partial(_rms_norm, card, hidden)
    yield "rotary", allowed, partial(_rotary, card)
    yield "silu_mul", allowed, partial(_silu_mul, card)
    for has_norm in (False, True):
        yield f"qkv{', head norms' if has_norm else ''}", allowed, partial(_qkv, card, has_norm)


def _num_tokens(card: Card) -> int:
    return 5 if card.is_dry else 130


def _rms_norm(card: Card, hidden: int) -> float:
    num_tokens = _num_tokens(card)
    stream, weight = torch.randn(num_tokens, hidden), torch.randn(hidden)
    added = torch.randn(num_tokens, hidden).to(_BF16)
    expected_stream, expected = reference_rms_norm(stream, added, weight, 1e-5)
    moved = stream.to(card.device, copy=True)
    output = unwritten(num_tokens, hidden, dtype=_BF16, device=card.device)
    rms_norm(moved, added.to(card.device), weight.to(card.device), 1e-5, output, card.configs).run()
    return max(difference(output, expected), difference(moved, expected_stream))


def _rotations(head_dim: int) -> torch.Tensor:
    angles = 10 * torch.randn(MAX_POSITIONS, head_dim // 2)
    return torch.view_as_real(torch.polar(torch.ones_like(angles), angles)).contiguous()


def _rotary(card: Card) -> float:
    num_tokens, head_dim = _num_tokens(card), 16 if card.is_dry else 128
    heads = torch.randn(num_tokens, 6, head_dim).to(_BF16)
    rotations, positions = _rotations(head_dim), torch.randint(0, MAX_POSITIONS, (num_tokens,))
    moved = heads.to(card.device, copy=True)
    rotary(moved, rotations.to(card.device), positions.to(card.device), 6, card.configs).run()
    return difference(moved, reference_rotary(heads, rotations, positions))


def _silu_mul(card: Card) -> float:
    num_tokens, size = _num_tokens(card), 96 if card.is_dry else 14336
    gate_up = (4 * torch.randn(num_tokens, 2 * size)).to(_BF16)
    output = unwritten(num_tokens, size, dtype=_BF16, device=card.device)
    silu_mul(gate_up.to(card.device), output, card.configs).run()
    return difference(output, reference_silu_mul(gate_up))


def _qkv(card: Card, has_norm: bool) -> float:
    num_tokens, head_dim, heads = _num_tokens(card), *((16, 4) if card.is_dry else (128, 32))
    shape = AttentionShape(heads, heads // 4, head_dim, 1.0)
    qkv = torch.randn(num_tokens, (heads + 2 * shape.num_kv_heads) * head_dim).to(_BF16)
    norms = HeadNorms(torch.randn(head_dim), torch.randn(head_dim), 1e-6) if has_norm else None
    slots = torch.randperm(2 * num_tokens)[:num_tokens]
    places = Places(torch.randint(0, MAX_POSITIONS, (num_tokens,)), slots, _rotations(head_dim))
    cache = torch.zeros(-(-2 * num_tokens // 16), 2, shape.num_kv_heads, 16, head_dim, dtype=_BF16)
    found = cache.to(card.device, copy=True)
    expected = reference_qkv_split(qkv, norms, places, cache, shape)
    queries = unwritten(num_tokens, heads * head_dim, dtype=_BF16, device=card.device)
    moved = qkv.to(card.device), on(card.device, norms), on(card.device, places)
    qkv_split(*moved, queries, found, shape, card.configs).run()
    return max(difference(queries, expected), difference(found, cache))
