"""From weights and a uniform number to a token: the inverse of the cumulative sum in token-id order."""

import torch

CHUNK = 128
"""Tokens that are summed together first, so that only one chunk of a row needs a cumulative sum."""


def chunked(values: torch.Tensor, fill: float) -> torch.Tensor:
    """(R, vocab) seen as (R, chunks, CHUNK); copied and padded with `fill` only where vocab does not divide."""
    missing = -values.shape[-1] % CHUNK
    if missing:
        values = torch.nn.functional.pad(values, (0, missing), value=fill)
    return values.view(values.shape[0], -1, CHUNK)


def draw_tokens(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """int64 (R,): the first token whose cumulative weight exceeds `uniforms` times the row's total.

    weights: float32 (R, vocab), not negative, some positive in each row; need not be normalised.
    uniforms: float64 (R,) in [0, 1). A row's answer depends on that row alone.
    """
    chunks = chunked(weights, 0.0)
    sums = chunks.sum(-1).double()
    upto = sums.cumsum(-1)
    targets = uniforms * upto[:, -1]
    chosen = _first_above(upto, targets)
    rows = torch.arange(len(weights), device=weights.device)
    before = torch.where(chosen > 0, upto[rows, (chosen - 1).clamp(min=0)], 0.0)
    inner = chunks[rows, chosen].double().cumsum(-1)
    return chosen * CHUNK + _first_above(inner, targets - before)


def _first_above(cumulative: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Index of the first entry above the target, at most that of the last entry that added anything.

    Rounding can leave a target at (or, within a chunk, a little over) the total; it must not reach a token of
    weight zero.
    """
    found = (cumulative <= targets[:, None]).sum(-1)
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return torch.minimum(found, last)
