"""Which tokens a sequence has seen, kept up to date token by token, and the penalties that follow from it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


class SeenTokens:
    """Distinct tokens of one sequence, each with how often it was generated (0: in the prompt only)."""

    def __init__(self, prompt_ids: npt.NDArray[np.int32], output_ids: npt.NDArray[np.int32]) -> None:
        distinct, places = np.unique(np.concatenate([prompt_ids, output_ids]), return_inverse=True)
        self._ids: Int64Array = distinct.astype(np.int64)
        self._counts: Float32Array = np.bincount(places[len(prompt_ids) :], minlength=len(distinct)).astype(
            np.float32
        )
        self._place = {token: place for place, token in enumerate(distinct.tolist())}

    @property
    def token_ids(self) -> Int64Array:
        """int64 (distinct tokens,), in order of first appearance after the initial, sorted ones."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Float32Array:
        """float32, parallel to `token_ids`: how often each was generated."""
        return self._counts[: len(self._place)]

    def add(self, token: int) -> None:
        """Count one generated token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            room = max(16, len(self._ids))
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._ids[place] = token
        self._counts[place] += 1.0


class Penalties(NamedTuple):
    """One row's penalties, its place in the logits and what it has seen."""

    row: int
    repetition: float
    presence: float
    frequency: float
    seen: SeenTokens


def apply_penalties(logits: torch.Tensor, penalties: Sequence[Penalties]) -> None:
    """Change float32 logits (R, vocab) in place, all rows in one gather and one scatter.

    Repetition divides positive and multiplies negative logits of prompt and output tokens (Keskar et al.,
    "CTRL", 2019); presence and frequency are subtracted for generated tokens, as OpenAI's API defines them.
    """
    sizes = [len(penalty.seen.token_ids) for penalty in penalties]
    rows = torch.from_numpy(np.repeat([penalty.row for penalty in penalties], sizes)).to(logits.device)
    ids = _joined([penalty.seen.token_ids for penalty in penalties], logits.device)
    counts = _joined([penalty.seen.counts for penalty in penalties], logits.device)

    def column(values: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

    repetition = column([penalty.repetition for penalty in penalties])
    values = logits[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= column([penalty.frequency for penalty in penalties]) * counts
    values -= column([penalty.presence for penalty in penalties]) * (counts > 0)
    logits[rows, ids] = values


def _joined(arrays: list[npt.NDArray[np.generic]], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays)).to(device)
