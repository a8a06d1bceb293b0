"""Sampling in plain torch, as `engine.sampling` defines it: what the kernels are held to."""

import numpy as np
import torch

from vllm_obs.engine.kernels.triton.filtered_draw import DrawColumns
from vllm_obs.engine.kernels.triton.logit_edits import PenaltyColumns, RowTokens
from vllm_obs.engine.sampling.draw import uniforms
from vllm_obs.engine.sampling.inverse_cdf import draw_tokens
from vllm_obs.engine.sampling.sorted_truncation import truncated_weights


def reference_weights(logits: torch.Tensor, columns: DrawColumns) -> torch.Tensor:
    """Weights (R, vocab), 0 for what the filters leave out; greedy rows as at temperature 1."""
    temperatures = torch.where(columns.temperatures > 0, columns.temperatures, 1.0)
    return truncated_weights(logits, temperatures, columns.top_ks.long(), columns.top_ps, columns.min_ps)


def reference_draw(logits: torch.Tensor, columns: DrawColumns) -> torch.Tensor:
    """int64 (R,): the tokens of finite logits (R, vocab)."""
    seeds, sequence_indices, positions = (
        column.cpu().numpy().view(np.uint64)
        for column in (columns.seeds, columns.sequence_indices, columns.positions)
    )
    numbers = torch.from_numpy(uniforms(seeds, sequence_indices, positions)).to(logits.device)
    drawn = draw_tokens(reference_weights(logits, columns), numbers)
    return torch.where(columns.temperatures > 0, drawn, logits.argmax(-1))


def reference_bitmask(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Ban tokens whose bit is 0, in place."""
    for row, words in zip(rows.tolist(), bitmask.tolist(), strict=True):
        for token in range(logits.shape[1]):
            word = words[token // 32] if token // 32 < len(words) else 0
            if not word >> token % 32 & 1:
                logits[row, token] = -torch.inf


def reference_penalties(logits: torch.Tensor, seen: RowTokens, columns: PenaltyColumns) -> None:
    """Penalise what rows have seen, in place."""
    starts = seen.starts.tolist()
    for entry, row in enumerate(seen.rows.tolist()):
        span = slice(starts[entry], starts[entry + 1])
        ids, counts = seen.token_ids[span].long(), columns.counts[span]
        values, repetition = logits[row, ids], columns.repetition[entry]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values = values - columns.frequency[entry] * counts
        logits[row, ids] = values - columns.presence[entry] * (counts > 0)


def reference_bias(logits: torch.Tensor, biased: RowTokens, biases: torch.Tensor) -> None:
    """Add biases, in place."""
    starts = biased.starts.tolist()
    for entry, row in enumerate(biased.rows.tolist()):
        span = slice(starts[entry], starts[entry + 1])
        row_logits = logits[row]
        row_logits.index_put_((biased.token_ids[span].long(),), biases[span], accumulate=True)
