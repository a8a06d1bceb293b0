"""Workloads of the kernels between logits and tokens: masks, edits of logits, and draws."""

from collections.abc import Iterator

import torch

from vllm_obs.engine.kernels.triton.best_tokens import best_tokens, logprobs
from vllm_obs.engine.kernels.triton.filtered_draw import DrawColumns, filtered_draw
from vllm_obs.engine.kernels.triton.logit_edits import PenaltyColumns, RowTokens, logit_bias, penalties
from vllm_obs.engine.kernels.triton.token_bitmask import WORD_BITS, token_bitmask
from vllm_obs.engine.kernels.triton.workloads import Bench, Workload

NUM_BEST = 20
MAX_SEEN = 1024
"""Tokens that a row has generated, or that have a bias."""
_TOP_K, _TOP_P = 50, 0.9


def sampling_workloads(bench: Bench) -> Iterator[Workload]:
    """One step's rows, with everything that a request can ask for."""
    num_rows, vocab = bench.size.num_rows, bench.shape.vocab_size
    logits = bench.random(num_rows, vocab, dtype=torch.float32)
    tokens = torch.zeros(num_rows, dtype=torch.int64, device=bench.device)
    floats = torch.zeros(num_rows, device=bench.device)
    size = f"{num_rows} × {vocab}"
    yield Workload(
        f"best_tokens {size}",
        "best_tokens",
        lambda configs: best_tokens(logits, tokens, floats, configs),
    )
    outputs = (
        torch.zeros(num_rows, 1 + NUM_BEST, dtype=torch.int32, device=bench.device),
        torch.zeros(num_rows, 1 + NUM_BEST, device=bench.device),
        torch.zeros(num_rows, dtype=torch.int32, device=bench.device),
    )
    yield Workload(
        f"logprobs {size}, {NUM_BEST} best",
        "logprobs",
        lambda configs: logprobs(logits, tokens, outputs, NUM_BEST, configs),
    )
    columns = draw_columns(bench)
    yield Workload(
        f"filtered_draw {size}",
        "filtered_draw",
        lambda configs: filtered_draw(logits, columns, tokens, floats, configs),
    )
    yield from _edits(bench, logits)


def draw_columns(bench: Bench) -> DrawColumns:
    """Every row with top_k, top_p and a seed of its own."""
    num_rows = bench.size.num_rows
    filled = torch.full((num_rows,), 0.0, device=bench.device)
    numbers = torch.arange(num_rows, dtype=torch.int64, device=bench.device)
    return DrawColumns(
        temperatures=filled + 0.9,
        top_ks=(filled + min(_TOP_K, bench.shape.vocab_size // 2)).int(),
        top_ps=filled + _TOP_P,
        min_ps=filled,
        seeds=numbers + 11,
        sequence_indices=numbers,
        positions=numbers + 3,
    )


def seen_tokens(bench: Bench) -> RowTokens:
    """As many different tokens of every row."""
    num_rows, num_seen = bench.size.num_rows, min(MAX_SEEN, bench.shape.vocab_size // 2)
    order = torch.randperm(bench.shape.vocab_size, device=bench.device)[:num_seen].int()
    return RowTokens(
        torch.arange(num_rows, dtype=torch.int32, device=bench.device),
        num_seen * torch.arange(num_rows + 1, dtype=torch.int32, device=bench.device),
        order.repeat(num_rows),
        num_seen,
    )


def penalty_columns(bench: Bench, seen: RowTokens) -> PenaltyColumns:
    """All three penalties for every row."""
    ones = torch.ones(bench.size.num_rows, device=bench.device)
    counts = torch.ones(len(seen.token_ids), device=bench.device)
    return PenaltyColumns(counts, ones * 1.2, ones * 0.5, ones * 0.25)


def bitmask(bench: Bench) -> torch.Tensor:
    """int32 (rows, words): about half of the tokens are allowed."""
    size = bench.size.num_rows, -(-bench.shape.vocab_size // WORD_BITS)
    return torch.randint(-(2**31), 2**31 - 1, size, dtype=torch.int32, device=bench.device)


def _edits(bench: Bench, logits: torch.Tensor) -> Iterator[Workload]:
    num_rows, vocab = bench.size.num_rows, bench.shape.vocab_size
    mask, rows = bitmask(bench), torch.arange(num_rows, dtype=torch.int32, device=bench.device)
    edited = logits.clone()
    yield Workload(
        f"token_bitmask {num_rows} × {vocab}",
        "token_bitmask",
        lambda configs: token_bitmask(edited, rows, mask, configs),
    )
    seen = seen_tokens(bench)
    columns = penalty_columns(bench, seen)
    yield Workload(
        f"penalties {num_rows} rows of {seen.max_num_tokens}",
        "penalties",
        lambda configs: penalties(edited, seen, columns, configs),
    )
    yield Workload(
        f"logit_bias {num_rows} rows of {seen.max_num_tokens}",
        "logit_bias",
        lambda configs: logit_bias(edited, seen, columns.counts, configs),
    )
