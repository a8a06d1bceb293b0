"""Tokens drawn from what min_p, top_k and top_p leave of each row, without sorting a vocabulary."""

from dataclasses import dataclass

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.best_tokens import best_of_row
from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import (
    Argument,
    Constant,
    Launch,
    Number,
    Pointer,
    Tile,
    device_function,
    kernel,
)
from vllm_obs.engine.kernels.triton.uniform import uniform

_GREEDY_BELOW = tl.constexpr(1e-5)


@device_function
def ordered_keys(values: "Tile") -> "Tile":
    """int64 keys in the order of float32 values; both zeros have one."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@device_function
def kth_largest_key(logits: "Pointer", k: "Number", VOCAB: tl.constexpr, BLOCK_SIZE: tl.constexpr) -> "Tile":
    """The key of the k-th largest logit: the largest that k logits reach.

    Each pass over the row counts for eight pivots at once and so finds three of the key's 32 bits (and one that
    is always 0).
    """
    low = tl.full([], -(2**31), tl.int64)
    step = tl.full([], 2**30, tl.int64)
    number = tl.arange(0, 8)
    while step > 0:
        pivots = low + step * number.to(tl.int64)
        reached = tl.zeros([8], tl.int32)
        for start in range(0, VOCAB, BLOCK_SIZE):
            place = start + tl.arange(0, BLOCK_SIZE)
            keys = ordered_keys(tl.load(logits + place, mask=place < VOCAB, other=float("-inf")))
            is_reached = (keys[:, None] >= pivots[None, :]) & (place < VOCAB)[:, None]
            reached += tl.sum(is_reached.to(tl.int32), 0)
        low += step * tl.sum(((reached >= k) & (number > 0)).to(tl.int64), 0)
        step = step // 8
    return low


@device_function
def row_weights(
    logits: "Pointer",
    place: "Tile",
    best: "Number",
    temperature: "Number",
    bounds: "Tile",
    VOCAB: tl.constexpr,
) -> "Tile":
    """float32 weights of a tile: 0 for logits whose key, or weights that, lie below the bounds."""
    least_key, least_weight = bounds
    values = tl.load(logits + place, mask=place < VOCAB, other=float("-inf"))
    weights = tl.exp((values - best) / temperature)
    kept = (ordered_keys(values) >= least_key) & (weights >= least_weight) & (place < VOCAB)
    return tl.where(kept, weights, 0.0)


@device_function
def weight_sum(
    logits: "Pointer",
    best: "Number",
    temperature: "Number",
    bounds: "Tile",
    VOCAB: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> "Tile":
    """float64 sum of what the bounds leave."""
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, VOCAB, BLOCK_SIZE):
        place = start + tl.arange(0, BLOCK_SIZE)
        total += tl.sum(row_weights(logits, place, best, temperature, bounds, VOCAB).to(tl.float64), 0)
    return total


@device_function
def nucleus_bound(
    logits: "Pointer",
    best: "Number",
    temperature: "Number",
    bounds: "Tile",
    top_p: "Number",
    VOCAB: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> "Tile":
    """The largest weight so that it and all above hold top_p of the sum; bits of weights are in their order."""
    share = top_p.to(tl.float64) * weight_sum(logits, best, temperature, bounds, VOCAB, BLOCK_SIZE)
    low = tl.full([], 0, tl.int32)
    step = tl.full([], 2**27, tl.int32)
    number = tl.arange(0, 8)
    while step > 0:
        pivots = low + step * number
        sums = tl.zeros([8], tl.float64)
        for start in range(0, VOCAB, BLOCK_SIZE):
            place = start + tl.arange(0, BLOCK_SIZE)
            weights = row_weights(logits, place, best, temperature, bounds, VOCAB)
            is_above = weights.to(tl.int32, bitcast=True)[:, None] >= pivots[None, :]
            sums += tl.sum(tl.where(is_above, weights[:, None], 0.0).to(tl.float64), 0)
        low += step * tl.sum(((sums >= share) & (number > 0)).to(tl.int32), 0)
        step = step // 8
    return low.to(tl.float32, bitcast=True)


@device_function
def drawn_token(
    logits: "Pointer",
    best: "Number",
    temperature: "Number",
    bounds: "Tile",
    number: "Number",
    VOCAB: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> "Tile":
    """The first token whose cumulative weight exceeds `number` of the sum, in the order of ids."""
    target = number * weight_sum(logits, best, temperature, bounds, VOCAB, BLOCK_SIZE)
    before = tl.full([], 0.0, tl.float64)
    found = tl.full([], -1, tl.int32)
    last = tl.full([], 0, tl.int32)
    for start in range(0, VOCAB, BLOCK_SIZE):
        place = start + tl.arange(0, BLOCK_SIZE)
        weights = row_weights(logits, place, best, temperature, bounds, VOCAB)
        upto = before + tl.cumsum(weights.to(tl.float64), 0)
        is_above = (upto > target) & (weights > 0)
        first = tl.min(tl.where(is_above, place, VOCAB), 0)
        found = tl.where((found < 0) & (first < VOCAB), first, found)
        last = tl.maximum(last, tl.max(tl.where(weights > 0, place, 0), 0))
        before += tl.sum(weights.to(tl.float64), 0)
    # Rounding can leave the target at the sum; it must not reach a token of weight zero.
    return tl.where(found < 0, last, found)


@kernel
def filtered_draw_kernel(
    logits: "Pointer",
    temperatures: "Pointer",
    top_ks: "Pointer",
    top_ps: "Pointer",
    min_ps: "Pointer",
    seeds: "Pointer",
    sequence_indices: "Pointer",
    positions: "Pointer",
    tokens: "Pointer",
    least_weights: "Pointer",
    logits_stride: "Number",
    VOCAB: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """One program: one row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    token, best, _ = best_of_row(logits, VOCAB, BLOCK_SIZE)
    temperature = tl.load(temperatures + row)
    least_weight = tl.load(min_ps + row)
    if tl.abs(best) == float("inf"):
        token = token * 0 - 1
    elif temperature >= _GREEDY_BELOW:
        least_key = tl.full([], -(2**31), tl.int64)
        k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
        if (k > 0) & (k < VOCAB):
            least_key = kth_largest_key(logits, k, VOCAB, BLOCK_SIZE)
        if top_p < 1.0:
            bounds = least_key, least_weight
            bound = nucleus_bound(logits, best, temperature, bounds, top_p, VOCAB, BLOCK_SIZE)
            least_weight = tl.maximum(least_weight, bound)
        number = uniform(tl.load(seeds + row), tl.load(sequence_indices + row), tl.load(positions + row))
        number = tl.sum(number, 0)
        bounds = least_key, least_weight
        token = drawn_token(logits, best, temperature, bounds, number, VOCAB, BLOCK_SIZE)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(least_weights + row, least_weight)


@dataclass(frozen=True)
class DrawColumns:
    """How each of R rows is drawn.

    temperatures (0: the best token), top_ps, min_ps: float32. top_ks: int32, 0 for off. seeds, sequence_indices,
    positions: int64, seeds by their 64 bits.
    """

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    seeds: torch.Tensor
    sequence_indices: torch.Tensor
    positions: torch.Tensor


def filtered_draw(
    logits: torch.Tensor, columns: DrawColumns, tokens: torch.Tensor, least_weights: torch.Tensor, configs: Configs
) -> Launch:
    """logits float32 (R, vocab) → tokens int64 (R,), -1 for a row without a finite best logit.

    Filters as `sampling.truncation.Filters`: ties at a boundary stay in. least_weights float32 (R,): below which
    share of the best token's probability min_p and top_p left tokens out.
    """
    arguments: dict[str, Argument] = {
        "logits": logits,
        "temperatures": columns.temperatures,
        "top_ks": columns.top_ks,
        "top_ps": columns.top_ps,
        "min_ps": columns.min_ps,
        "seeds": columns.seeds,
        "sequence_indices": columns.sequence_indices,
        "positions": columns.positions,
        "tokens": tokens,
        "least_weights": least_weights,
        "logits_stride": logits.stride(0),
    }
    constants: dict[str, Constant] = {"VOCAB": logits.shape[1]}
    return Launch(filtered_draw_kernel, (len(logits),), arguments, constants, configs.of("filtered_draw"))
