"""What one sequence may not, must or would rather sample: bans, biases, allowed tokens, grammar masks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.messages import SamplingSpec

if TYPE_CHECKING:
    from vllm_obs.engine.kernels.cpu.bitmask import Bitmask

Int64Array = npt.NDArray[np.int64]

WORD_BITS = 32
"""Tokens to a word of a bitmask."""


@dataclass(slots=True)
class RowConstraints:
    """A row's fixed constraints as arrays. Ids outside the vocabulary are left out: they cannot be sampled."""

    allowed_ids: Int64Array
    bias_ids: Int64Array
    bias_values: npt.NDArray[np.float32]
    ending_ids: Int64Array
    bad_words: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, spec: SamplingSpec, vocab_size: int) -> "RowConstraints":
        """The constraints that `spec` asks for, under a vocabulary of that size."""
        bias = [(token, value) for token, value in spec.logit_bias if 0 <= token < vocab_size]
        return cls(
            allowed_ids=_ids(spec.allowed_token_ids, vocab_size),
            bias_ids=np.array([token for token, _ in bias], np.int64),
            bias_values=np.array([value for _, value in bias], np.float32),
            ending_ids=_ids((*spec.eos_token_ids, *spec.stop_token_ids), vocab_size),
            bad_words=tuple(word for word in spec.bad_words_ids if word and 0 <= word[-1] < vocab_size),
        )


@dataclass
class TokenEdits:
    """Edits to single logits of a step, gathered over its rows and applied in two scatters."""

    rows: list[Int64Array] = field(default_factory=list)
    ids: list[Int64Array] = field(default_factory=list)
    values: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def bias(self, row: int, ids: Int64Array, values: npt.NDArray[np.float32]) -> None:
        """Add `values` to the logits of `ids`."""
        self.rows.append(np.full(len(ids), row, np.int64))
        self.ids.append(ids)
        self.values.append(values)

    def ban(self, row: int, ids: Int64Array) -> None:
        """Make `ids` impossible."""
        self.bias(row, ids, np.full(len(ids), -np.inf, np.float32))

    def apply(self, logits: torch.Tensor) -> None:
        """Change float32 logits (R, vocab) in place."""
        if not self.rows:
            return
        rows = torch.from_numpy(np.concatenate(self.rows)).to(logits.device)
        ids = torch.from_numpy(np.concatenate(self.ids)).to(logits.device)
        values = torch.from_numpy(np.concatenate(self.values)).to(logits.device)
        logits.index_put_((rows, ids), values, accumulate=True)


def allow_only(logits: torch.Tensor, row: int, ids: Int64Array) -> None:
    """Make every token of a row impossible but `ids`, in place."""
    kept = torch.from_numpy(ids).to(logits.device)
    values = logits[row, kept]
    logits[row] = -torch.inf
    logits[row, kept] = values


def banned_by_bad_words(words: Sequence[tuple[int, ...]], output_ids: npt.NDArray[np.int32]) -> Int64Array:
    """Ids that would complete one of `words` after the tokens generated so far."""
    banned = []
    for word in words:
        beginning = len(word) - 1
        if beginning <= len(output_ids) and tuple(output_ids[len(output_ids) - beginning :]) == word[:-1]:
            banned.append(word[-1])
    return np.array(sorted(set(banned)), np.int64)


def is_allowed(token_id: int, bitmask: npt.NDArray[np.int32], number: int) -> bool:
    """Whether a token's bit is set in the mask of this number; beyond its width no token is allowed."""
    place, bit = divmod(token_id, WORD_BITS)
    return place < bitmask.shape[1] and bool(bitmask.item(number, place) >> bit & 1)


def apply_bitmask(logits: torch.Tensor, rows: Sequence[int] | Int64Array, bitmask: npt.NDArray[np.int32]) -> None:
    """Make tokens whose bit is 0 impossible, in place; bits run from the least significant of each int32.

    bitmask: (len(rows), at least ceil(vocab / 32)). Tokens beyond its width are not allowed.
    """
    kernel = _bitmask_kernel() if logits.device.type == "cpu" else None
    num_words = 0 if kernel is None else min(logits.shape[-1] // WORD_BITS, bitmask.shape[1])
    if kernel is not None:
        kernel.apply(logits.numpy(), np.asarray(rows, np.int64), bitmask, num_words)
    if (num_done := num_words * WORD_BITS) < logits.shape[-1]:
        _blank_banned(logits[:, num_done:], rows, bitmask[:, num_words:])


@cache
def _bitmask_kernel() -> "Bitmask | None":
    # Imported here: compiled kernels are for CPUs.
    from vllm_obs.engine.kernels.cpu.bitmask import compiled_bitmask

    return compiled_bitmask()


def _blank_banned(logits: torch.Tensor, rows: Sequence[int] | Int64Array, bitmask: npt.NDArray[np.int32]) -> None:
    """`apply_bitmask` by torch, on the logits' device, where the bits are taken apart."""
    size, device = logits.shape[-1], logits.device
    words = torch.from_numpy(np.ascontiguousarray(bitmask)).to(device)
    places = torch.arange(WORD_BITS, dtype=torch.int32, device=device)
    is_banned = ((words[:, :, None] >> places) & 1 == 0).flatten(1)[:, :size]
    is_banned = torch.nn.functional.pad(is_banned, (0, size - is_banned.shape[1]), value=True)
    index = torch.tensor(list(rows), device=device)
    logits[index] = logits[index].masked_fill_(is_banned, -torch.inf)


def _ids(tokens: Iterable[int], vocab_size: int) -> Int64Array:
    return np.array(sorted({token for token in tokens if 0 <= token < vocab_size}), np.int64)
