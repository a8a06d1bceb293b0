"""Which tokens top_k, top_p and min_p leave in, without sorting a vocabulary."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


GROUP = 128
"""Entries of a row whose largest is found first, when only the best few are wanted."""

LARGE_SHARE = 1e-4
"""Of the sum of all weights: what makes an entry worth a look before the others."""


class Filters(NamedTuple):
    """One row's filters, applied in this order, each to what the one before it left.

    `min_p` keeps tokens with at least that share of the best token's probability (0: off), `top_k` the best k
    (0: off), `top_p` the smallest set of best tokens with at least that share of the mass (1: off; Holtzman et
    al., "The curious case of neural text degeneration", 2019). Ties at a boundary stay in, so the answer does
    not depend on a sort's order.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def best_token_ids(row: Float32Array, k: int) -> Int64Array:
    """Ids, ascending, of the k largest entries of one row (vocab,) and of all that tie with the k-th.

    The k-th largest of the groups' maxima cannot be above the k-th largest entry, so one comparison leaves few
    candidates, whatever the groups are.
    """
    if k >= len(row):
        return np.arange(len(row))
    num_grouped = len(row) - len(row) % GROUP
    maxima = np.concatenate([row[:num_grouped].reshape(GROUP, -1).max(axis=0), row[num_grouped:]])
    bound = _kth_largest(maxima, k) if k <= len(maxima) else _kth_largest(row, k)
    ids = np.flatnonzero(row >= bound)
    if len(ids) > k:
        values = row[ids]
        ids = ids[values >= _kth_largest(values, k)]
    return ids


def is_whole(filters: Filters, vocab_size: int) -> bool:
    """Whether only top_p is at work, which needs the probability of every token."""
    return filters.min_p <= 0.0 and not 0 < filters.top_k < vocab_size


def kept_tokens(row: Float32Array, best: float, filters: Filters) -> tuple[Int64Array, Float32Array]:
    """Ids, ascending, and weights of what the filters leave of one row of logits (vocab,), `best` its largest.

    For rows that are not whole.
    """
    if 0 < filters.top_k < len(row):
        ids = best_token_ids(row, filters.top_k)
        weights = _weights(row[ids], best, filters.temperature)
        within = weights >= filters.min_p
        ids, weights = ids[within], weights[within]
    else:
        ids = np.flatnonzero(row >= best + filters.temperature * math.log(filters.min_p))
        weights = _weights(row[ids], best, filters.temperature)
    if filters.top_p >= 1.0:
        return ids, weights
    places, weights = nucleus(weights, float(weights.sum(dtype=np.float64)), filters.top_p)
    return ids[places], weights


def nucleus(weights: Float32Array, total: float, top_p: float) -> tuple[Int64Array, Float32Array]:
    """Places, ascending, and weights of the smallest best part of `weights` with `top_p` of their sum `total`.

    Only entries that can belong are sorted. Mostly few large ones hold enough; otherwise, entries below
    (1 - top_p) / n of the sum together hold less than 1 - top_p of it, so those above do.
    """
    places = np.flatnonzero(weights >= LARGE_SHARE * total)
    candidates = weights[places]
    if float(candidates.sum(dtype=np.float64)) < top_p * total:
        places = np.flatnonzero(weights >= (1.0 - top_p) * total / len(weights))
        candidates = weights[places]
    descending = np.sort(candidates)[::-1]
    reached = np.cumsum(descending, dtype=np.float64)
    last = min(int(np.searchsorted(reached, top_p * total)), len(descending) - 1)
    within = candidates >= descending[last]
    return places[within], candidates[within]


def _weights(logits: Float32Array, best: float, temperature: float) -> Float32Array:
    weights: Float32Array = np.exp((logits - np.float32(best)) / np.float32(temperature))
    return weights


def _kth_largest(values: Float32Array, k: int) -> float:
    return float(np.partition(values, len(values) - k)[len(values) - k])
