"""The best token of each row, its logit, and what turns logits into log-probabilities."""

import torch
import triton.language as tl

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


@device_function
def best_of_row(logits: "Pointer", VOCAB: tl.constexpr, BLOCK_SIZE: tl.constexpr) -> "Tile":
    """(first best token, its logit, sum of exp(logit - best)) of one row; a NaN counts as best, as +inf."""
    largest = tl.full([], float("-inf"), tl.float32)
    best = tl.full([], 0, tl.int32)
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, VOCAB, BLOCK_SIZE):
        place = start + tl.arange(0, BLOCK_SIZE)
        values = tl.load(logits + place, mask=place < VOCAB, other=float("-inf"))
        values = tl.where(values != values, float("inf"), values)
        top = tl.max(values, 0)
        first = tl.min(tl.where((values == top) & (place < VOCAB), place, VOCAB), 0)
        best = tl.where(top > largest, first, best)
        grown = tl.maximum(largest, top)
        pivot = tl.where(tl.abs(grown) == float("inf"), 0.0, grown)
        kept = tl.where(largest == float("-inf"), 0.0, tl.exp(largest - pivot))
        total = total * kept + tl.sum(tl.exp(values - pivot).to(tl.float64), 0)
        largest = grown
    return best, largest, total


@kernel
def best_tokens_kernel(
    logits: "Pointer",
    tokens: "Pointer",
    maxima: "Pointer",
    logits_stride: "Number",
    VOCAB: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """One program: one row."""
    row = tl.program_id(0).to(tl.int64)
    best, largest, _ = best_of_row(logits + row * logits_stride, VOCAB, BLOCK_SIZE)
    tl.store(tokens + row, best.to(tl.int64))
    tl.store(maxima + row, largest)


@kernel
def logprobs_kernel(
    logits: "Pointer",
    chosen: "Pointer",
    token_ids: "Pointer",
    logprobs: "Pointer",
    ranks: "Pointer",
    logits_stride: "Number",
    VOCAB: tl.constexpr,
    NUM_BEST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """One program: one row; each alternative is the best token behind the one before it."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    token_ids += row * (NUM_BEST + 1)
    logprobs += row * (NUM_BEST + 1)
    best, largest, total = best_of_row(logits, VOCAB, BLOCK_SIZE)
    log_total = tl.log(total).to(tl.float32)
    token = tl.load(chosen + row)
    own = tl.load(logits + token)
    rank = tl.full([], 1, tl.int32)
    for start in range(0, VOCAB, BLOCK_SIZE):
        place = start + tl.arange(0, BLOCK_SIZE)
        values = tl.load(logits + place, mask=place < VOCAB, other=float("-inf"))
        rank += tl.sum((values > own).to(tl.int32), 0)
    tl.store(token_ids, token.to(tl.int32))
    tl.store(logprobs, own - largest - log_total)
    tl.store(ranks + row, rank)
    value = largest
    for number in range(NUM_BEST):
        tl.store(token_ids + 1 + number, best)
        tl.store(logprobs + 1 + number, value - largest - log_total)
        next_value = tl.full([], float("-inf"), tl.float32)
        next_best = tl.full([], VOCAB, tl.int32)
        for start in range(0, VOCAB, BLOCK_SIZE):
            place = start + tl.arange(0, BLOCK_SIZE)
            values = tl.load(logits + place, mask=place < VOCAB, other=float("-inf"))
            is_behind = (values < value) | ((values == value) & (place > best))
            is_behind &= place < VOCAB
            top = tl.max(tl.where(is_behind, values, float("-inf")), 0)
            first = tl.min(tl.where(is_behind & (values == top), place, VOCAB), 0)
            is_better = (top > next_value) | ((next_best == VOCAB) & (first < VOCAB))
            next_best = tl.where(is_better, first, next_best)
            next_value = tl.where(is_better, top, next_value)
        value = next_value
        best = next_best


def best_tokens(logits: torch.Tensor, tokens: torch.Tensor, maxima: torch.Tensor, configs: Configs) -> Launch:
    """logits float32 (R, vocab) → tokens int64 (R,), the first best of each row; maxima float32 (R,), its logit.

    A NaN makes the maximum +inf, so one look at the maxima finds the rows that have gone wrong.
    """
    arguments: dict[str, Argument] = {
        "logits": logits,
        "tokens": tokens,
        "maxima": maxima,
        "logits_stride": logits.stride(0),
    }
    constants: dict[str, Constant] = {"VOCAB": logits.shape[1]}
    return Launch(best_tokens_kernel, (len(logits),), arguments, constants, configs.of("best_tokens"))


def logprobs(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    num_best: int,
    configs: Configs,
) -> Launch:
    """Log-probabilities of logits float32 (R, vocab) for the tokens chosen, int64 (R,), and the num_best best.

    outputs: token ids int32 and log-probabilities float32 (R, 1 + num_best), the chosen one first; its rank int32
    (R,), one more than the number of tokens strictly more probable. Among equals the lower id is the better one.
    """
    token_ids, values, ranks = outputs
    arguments: dict[str, Argument] = {
        "logits": logits,
        "chosen": chosen,
        "token_ids": token_ids,
        "logprobs": values,
        "ranks": ranks,
        "logits_stride": logits.stride(0),
    }
    constants: dict[str, Constant] = {"VOCAB": logits.shape[1], "NUM_BEST": num_best}
    return Launch(logprobs_kernel, (len(logits),), arguments, constants, configs.of("logprobs"))
