"""The choice of one token per row: the best for greedy rows, a drawn one for the others.

On a CPU, rows are drawn by a compiled kernel in this thread, and what filters need is numpy's, row by row: every
parallel region waits for the slowest thread, which on a busy host takes longer than the work.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.draw import uniforms
from vllm_obs.engine.sampling.inverse_cdf import draw_tokens
from vllm_obs.engine.sampling.sorted_truncation import truncated_weights
from vllm_obs.engine.sampling.truncation import is_whole, kept_tokens, nucleus

if TYPE_CHECKING:
    from vllm_obs.engine.kernels.cpu.draw import Draw

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


_MOST = 0.75
"""Where so many rows draw from all tokens, all are gone through: to copy them costs more than the others do."""


def best_tokens(logits: torch.Tensor, rows: list[int] | None = None) -> tuple[Int64Array, Float32Array]:
    """The first best token of each row of float32 logits (R, vocab), and its logit; NaN counts as best.

    Of those `rows` alone, if they are given. numpy's argmax is vectorised on CPUs, where torch's is not.
    """
    if logits.device.type == "cpu":
        values = logits.numpy()
        if rows is None:
            best = values.argmax(-1)
            return best, values[np.arange(len(best)), best]
        best = np.array([values[row].argmax() for row in rows], np.int64)
        return best, values[rows, best]
    if rows is not None:
        logits = logits[torch.tensor(rows, device=logits.device)]
    maxima, indices = logits.max(-1)
    return indices.cpu().numpy(), maxima.cpu().numpy()


def has_draw_kernel(logits: torch.Tensor) -> bool:
    """Whether rows of these logits without filters are drawn by a compiled kernel, which takes masks too."""
    return logits.device.type == "cpu" and _draw_kernel() is not None


def choose_tokens(
    logits: torch.Tensor, best: Int64Array, batch: SamplingBatch, masks: Mapping[int, Int32Array] | None = None
) -> Int64Array:
    """int64 (R,) for finite float32 logits (R, vocab), whose best tokens are `best`; may overwrite the logits.

    masks: where `has_draw_kernel`, the words of what a random row without filters may have; -1 if that is nothing.
    """
    tokens = best.copy()
    if not batch.needed & Need.RANDOM:
        return tokens
    needs = batch.needs & (Need.RANDOM | Need.FILTERS)
    numbers = uniforms(
        batch.columns.seeds[batch.rows],
        batch.columns.sequence_indices[batch.rows],
        batch.num_tokens.astype(np.uint64),
    )
    if len(filtered := np.flatnonzero(needs == Need.RANDOM | Need.FILTERS)):
        draw = _draw_filtered if logits.device.type == "cpu" else _draw_sorted
        tokens[filtered] = draw(logits, filtered, numbers[filtered], batch)
    if len(plain := np.flatnonzero(needs == Need.RANDOM)):  # last, as it overwrites
        if has_draw_kernel(logits):
            tokens[plain] = _draw_compiled(logits, plain, numbers[plain], best, batch, masks or {})
        else:
            tokens[plain] = _draw_plain(logits, plain, numbers, batch)
    return tokens


@cache
def _draw_kernel() -> "Draw | None":
    # Imported here: compiled kernels are for CPUs.
    from vllm_obs.engine.kernels.cpu.draw import compiled_draw

    return compiled_draw()


def _draw_compiled(
    logits: torch.Tensor,
    rows: Int64Array,
    numbers: Float64Array,
    best: Int64Array,
    batch: SamplingBatch,
    masks: Mapping[int, Int32Array],
) -> Int64Array:
    """In this thread, in one pass: a step's rows take less than several threads that wait for each other."""
    kernel = _draw_kernel()
    assert kernel is not None
    words = {place: masks[row] for place, row in enumerate(rows.tolist()) if row in masks} if masks else {}
    temperatures = batch.columns.temperatures[batch.rows[rows]]
    return kernel.draw(logits.numpy(), rows, temperatures, numbers, best[rows], words)


def _draw_plain(
    logits: torch.Tensor, plain: Int64Array, numbers: Float64Array, batch: SamplingBatch
) -> Int64Array:
    """By torch, all rows at once; overwrites the logits when most are drawn."""
    rows = np.arange(len(logits)) if _MOST * len(logits) <= len(plain) else plain
    weights = _probabilities(logits, rows, batch)
    drawn: Int64Array = draw_tokens(weights, torch.from_numpy(numbers[rows]).to(logits.device)).cpu().numpy()
    return drawn if len(rows) == len(plain) else drawn[plain]


def _probabilities(logits: torch.Tensor, rows: Int64Array, batch: SamplingBatch) -> torch.Tensor:
    """Float32 (len(rows), vocab) at the rows' temperatures; overwrites the logits when it is all of them.

    Those of greedy rows, whose temperature is 0, are for nobody to read.
    """
    temperatures = torch.from_numpy(batch.columns.temperatures[batch.rows[rows]]).to(logits.device)
    chosen = logits if len(rows) == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]
    return torch.softmax(chosen.mul_(temperatures.reciprocal()[:, None]), dim=-1)


def _draw_filtered(
    logits: torch.Tensor, rows: Int64Array, numbers: Float64Array, batch: SamplingBatch
) -> Int64Array:
    """Row by row, on a CPU: only a few candidates of each are sorted."""
    vocab_size = logits.shape[-1]
    filters = [batch.filters(row) for row in rows.tolist()]
    whole = [place for place, one in enumerate(filters) if is_whole(one, vocab_size)]
    tokens = np.empty(len(rows), np.int64)
    if whole:
        probabilities = _probabilities(logits, rows[whole], batch).numpy()
        for place, row in zip(whole, probabilities, strict=True):
            tokens[place] = _draw_one(*nucleus(row, 1.0, filters[place].top_p), numbers[place])
    values = logits.numpy()
    for place in set(range(len(rows))) - set(whole):
        row = values[rows[place]]
        tokens[place] = _draw_one(*kept_tokens(row, float(row.max()), filters[place]), numbers[place])
    return tokens


def _draw_one(ids: Int64Array, weights: Float32Array, number: float) -> int:
    """The id whose share of the cumulative weight the number falls into; never one of weight zero."""
    upto = np.cumsum(weights, dtype=np.float64)
    drawn = min(np.searchsorted(upto, number * upto[-1], side="right"), np.searchsorted(upto, upto[-1]))
    return int(ids[drawn])


def _draw_sorted(
    logits: torch.Tensor, rows: Int64Array, numbers: Float64Array, batch: SamplingBatch
) -> Int64Array:
    """All rows at once on an accelerator, where sorting is cheap and waiting for it is not."""
    columns = zip(*(batch.filters(row) for row in rows.tolist()), strict=True)
    temperature, top_k, top_p, min_p = (torch.tensor(column, device=logits.device) for column in columns)
    chosen = logits[torch.from_numpy(rows).to(logits.device)]
    weights = truncated_weights(chosen, temperature, top_k, top_p, min_p)
    tokens: Int64Array = draw_tokens(weights, torch.from_numpy(numbers).to(logits.device)).cpu().numpy()
    return tokens
