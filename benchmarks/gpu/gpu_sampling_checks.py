"""Checks of what lies between logits and tokens: most of it must be the same to the bit."""

from collections.abc import Iterator
from functools import partial

import torch
from gpu_card import Card
from gpu_differences import TOLERANCES, Found, difference, num_unequal, on, unwritten

from vllm_obs.engine.kernels.triton.best_tokens import best_tokens, logprobs
from vllm_obs.engine.kernels.triton.filtered_draw import filtered_draw
from vllm_obs.engine.kernels.triton.logit_edits import logit_bias, penalties
from vllm_obs.engine.kernels.triton.model_shape import LLAMA_3_8B, TINY
from vllm_obs.engine.kernels.triton.sampling_reference import (
    reference_bias,
    reference_bitmask,
    reference_draw,
    reference_penalties,
)
from vllm_obs.engine.kernels.triton.sampling_workloads import bitmask, draw_columns, penalty_columns, seen_tokens
from vllm_obs.engine.kernels.triton.token_bitmask import token_bitmask
from vllm_obs.engine.kernels.triton.workloads import Bench, WorkSize

CPU = torch.device("cpu")
LOGPROBS_ALLOWED = 2e-6
NUM_BEST = 5
MASKED_VOCAB = 2000
"""The reference looks at every bit by itself."""


def sampling_checks(card: Card) -> Iterator[Found]:
    """Each kernel once, over a whole vocabulary."""
    edits = TOLERANCES[torch.float32]
    yield "best_tokens", 0.0, partial(_best_tokens, card)
    yield "logprobs", LOGPROBS_ALLOWED, partial(_logprobs, card)
    yield "filtered_draw", 0.0, partial(_filtered_draw, card)
    yield "token_bitmask", 0.0, partial(_token_bitmask, card)
    yield "penalties", edits, partial(_penalties, card)
    yield "logit_bias", edits, partial(_logit_bias, card)


def _bench(card: Card) -> Bench:
    """On the CPU, where references are."""
    shape, num_rows = (TINY, 2) if card.is_dry else (LLAMA_3_8B, 8)
    return Bench(shape, WorkSize(num_rows, 16, 1), CPU)


def _logits(card: Card) -> torch.Tensor:
    bench = _bench(card)
    return 4 * bench.random(bench.size.num_rows, bench.shape.vocab_size, dtype=torch.float32)


def _best_tokens(card: Card) -> float:
    logits = _logits(card)
    tokens = unwritten(len(logits), dtype=torch.int64, device=card.device)
    maxima = unwritten(len(logits), dtype=torch.float32, device=card.device)
    best_tokens(logits.to(card.device), tokens, maxima, card.configs).run()
    return num_unequal(tokens, logits.argmax(-1)) + num_unequal(maxima, logits.amax(-1))


def _logprobs(card: Card) -> float:
    logits = _logits(card)
    chosen = torch.arange(len(logits)) * 7 % logits.shape[1]
    size = (len(logits), 1 + NUM_BEST)
    ids = unwritten(*size, dtype=torch.int32, device=card.device)
    values = unwritten(*size, dtype=torch.float32, device=card.device)
    ranks = unwritten(len(logits), dtype=torch.int32, device=card.device)
    logprobs(logits.to(card.device), chosen.to(card.device), (ids, values, ranks), NUM_BEST, card.configs).run()
    expected_ids = torch.cat((chosen[:, None], logits.topk(NUM_BEST).indices), 1)
    expected_ranks = (logits > logits.gather(1, chosen[:, None])).sum(-1) + 1
    if num_unequal(ids, expected_ids.int()) + num_unequal(ranks, expected_ranks.int()):
        return torch.inf
    return difference(values, logits.double().log_softmax(-1).gather(1, expected_ids))


def _filtered_draw(card: Card) -> float:
    logits, columns = _logits(card), draw_columns(_bench(card))
    tokens = unwritten(len(logits), dtype=torch.int64, device=card.device)
    least = unwritten(len(logits), dtype=torch.float32, device=card.device)
    filtered_draw(logits.to(card.device), on(card.device, columns), tokens, least, card.configs).run()
    return num_unequal(tokens, reference_draw(logits, columns))


def _token_bitmask(card: Card) -> float:
    logits = _logits(card)[:, :MASKED_VOCAB].contiguous()
    mask = bitmask(_bench(card))[:, : -(-logits.shape[1] // 32)].contiguous()
    rows = torch.arange(len(logits)).int()
    found = logits.to(card.device, copy=True)
    token_bitmask(found, rows.to(card.device), mask.to(card.device), card.configs).run()
    reference_bitmask(logits, rows, mask)
    return num_unequal(found, logits)


def _penalties(card: Card) -> float:
    bench, logits = _bench(card), _logits(card)
    seen = seen_tokens(bench)
    columns, found = penalty_columns(bench, seen), logits.to(card.device, copy=True)
    penalties(found, on(card.device, seen), on(card.device, columns), card.configs).run()
    reference_penalties(logits, seen, columns)
    return difference(found, logits)


def _logit_bias(card: Card) -> float:
    logits, seen = _logits(card), seen_tokens(_bench(card))
    biases, found = torch.randn(len(seen.token_ids)), logits.to(card.device, copy=True)
    logit_bias(found, on(card.device, seen), biases.to(card.device), card.configs).run()
    reference_bias(logits, seen, biases)
    return difference(found, logits)
