"""Penalties, biases and bans: changes to single logits of some rows."""

from dataclasses import dataclass

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import Argument, Launch, Number, Pointer, kernel


@kernel
def penalties_kernel(
    logits: "Pointer",
    rows: "Pointer",
    starts: "Pointer",
    token_ids: "Pointer",
    counts: "Pointer",
    repetition: "Pointer",
    presence: "Pointer",
    frequency: "Pointer",
    logits_stride: "Number",
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """One program: some of the tokens that one row has seen."""
    entry = tl.program_id(0)
    place = tl.load(starts + entry) + tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    kept = place < tl.load(starts + entry + 1)
    token = tl.load(token_ids + place, mask=kept, other=0)
    count = tl.load(counts + place, mask=kept, other=0.0)
    target = logits + tl.load(rows + entry).to(tl.int64) * logits_stride + token
    value = tl.load(target, mask=kept, other=0.0)
    factor = tl.load(repetition + entry)
    value = tl.where(value > 0, value / factor, value * factor)
    value -= tl.load(frequency + entry) * count
    value -= tl.where(count > 0, tl.load(presence + entry), 0.0)
    tl.store(target, value, mask=kept)


@kernel
def logit_bias_kernel(
    logits: "Pointer",
    rows: "Pointer",
    starts: "Pointer",
    token_ids: "Pointer",
    biases: "Pointer",
    logits_stride: "Number",
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """One program: some of one row's biases; a token may have several."""
    entry = tl.program_id(0)
    place = tl.load(starts + entry) + tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    kept = place < tl.load(starts + entry + 1)
    token = tl.load(token_ids + place, mask=kept, other=0)
    bias = tl.load(biases + place, mask=kept, other=0.0)
    tl.atomic_add(logits + tl.load(rows + entry).to(tl.int64) * logits_stride + token, bias, mask=kept)


@dataclass(frozen=True)
class RowTokens:
    """Tokens of some rows, one after another.

    rows: int32 (P,), no row twice. starts: int32 (P + 1,) into the tokens. token_ids: int32 (N,).
    max_num_tokens: of one row, at least, as the host knows it.
    """

    rows: torch.Tensor
    starts: torch.Tensor
    token_ids: torch.Tensor
    max_num_tokens: int


@dataclass(frozen=True)
class PenaltyColumns:
    """counts: float32 (N,), how often each token was generated. The rest: float32 (P,), as in SamplingParams."""

    counts: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


def penalties(logits: torch.Tensor, seen: RowTokens, columns: PenaltyColumns, configs: Configs) -> Launch:
    """Penalise what rows have seen (each token once), in logits float32 (R, vocab); see `sampling.penalties`."""
    config = configs.of("penalties")
    arguments: dict[str, Argument] = {
        "logits": logits,
        "rows": seen.rows,
        "starts": seen.starts,
        "token_ids": seen.token_ids,
        "counts": columns.counts,
        "repetition": columns.repetition,
        "presence": columns.presence,
        "frequency": columns.frequency,
        "logits_stride": logits.stride(0),
    }
    grid = (len(seen.rows), -(-seen.max_num_tokens // config.sizes["BLOCK_SIZE"]))
    return Launch(penalties_kernel, grid, arguments, {}, config)


def logit_bias(logits: torch.Tensor, biased: RowTokens, biases: torch.Tensor, configs: Configs) -> Launch:
    """Add biases float32 (N,), -inf for a ban, to the logits float32 (R, vocab) of their tokens."""
    config = configs.of("logit_bias")
    arguments: dict[str, Argument] = {
        "logits": logits,
        "rows": biased.rows,
        "starts": biased.starts,
        "token_ids": biased.token_ids,
        "biases": biases,
        "logits_stride": logits.stride(0),
    }
    grid = (len(biased.rows), -(-biased.max_num_tokens // config.sizes["BLOCK_SIZE"]))
    return Launch(logit_bias_kernel, grid, arguments, {}, config)
