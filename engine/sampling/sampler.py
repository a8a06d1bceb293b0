"""One token for each row of logits: what each row asks for is applied, and nothing that no row asks for."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.faults import InjectedFaultError, any_planted, maybe_fault
from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.choice import best_tokens, choose_tokens
from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.edits import apply_edits
from vllm_obs.engine.sampling.logprobs import gather_logprobs, position_of

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class SampledTokens(NamedTuple):
    """A step's tokens, parallel to the batch; a failed row has token -1 and an entry in `failed`."""

    token_ids: list[int]
    logprobs: list[tuple[str, Logprobs]]
    failed: list[tuple[str, str, str]]


def sample(logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks | None) -> SampledTokens:
    """Sample every row of float32 logits (R, vocab), which may be overwritten.

    A row whose logits are not finite, or that is left with no possible token, fails alone. The rest of the
    batch never changes a row's token.
    """
    plant_faults(logits, batch.request_ids)
    best, maxima = best_tokens(logits)
    broken = _blank_infinite(logits, maxima)
    logprob_rows = batch.indices(Need.LOGPROBS)
    raw = torch.log_softmax(_select(logits, logprob_rows), dim=-1) if logprob_rows else None
    edited = apply_edits(logits, batch, masks, best)
    emptied = _look_again(logits, edited.changed, best)
    tokens = choose_tokens(logits, best, batch, edited.masks)
    emptied |= tokens < 0
    failed = broken | emptied
    tokens[failed] = 0  # of a failed row any log-probabilities will do: they are left out
    logprobs = [] if raw is None else _logprobs(raw, logprob_rows, tokens, batch)
    tokens[failed] = -1
    gone = {batch.request_ids[row] for row in np.flatnonzero(failed).tolist()}
    kept = [entry for entry in logprobs if entry[0] not in gone]
    return SampledTokens(tokens.tolist(), kept, failures(batch.request_ids, broken, emptied))


def _blank_infinite(logits: torch.Tensor, maxima: Float32Array) -> BoolArray:
    """Which rows have no finite best logit (NaN, infinite, or nothing possible); they become zeros, in place."""
    is_infinite: BoolArray = ~np.isfinite(maxima)
    _blank(logits, is_infinite)
    return is_infinite


def _blank(logits: torch.Tensor, is_unusable: BoolArray) -> None:
    if is_unusable.any():
        logits[torch.from_numpy(is_unusable).to(logits.device)] = 0.0


def _look_again(logits: torch.Tensor, changed: list[int], best: Int64Array) -> BoolArray:
    """Find the best tokens of changed rows anew, in place. Which rows have none: their logits become zeros."""
    is_emptied = np.zeros(len(best), np.bool_)
    if changed:
        best[changed], maxima = best_tokens(logits, changed)
        is_emptied[changed] = ~np.isfinite(maxima)
        _blank(logits, is_emptied)
    return is_emptied


def plant_faults(logits: torch.Tensor, request_ids: Sequence[str]) -> None:
    """A fault at `logits` breaks the numbers of its row, one at `sampler` is an error in our own code."""
    if not any_planted():
        return
    for index, request_id in enumerate(request_ids):
        maybe_fault("sampler", request_id)
        try:
            maybe_fault("logits", request_id)
        except InjectedFaultError:
            logits[index] = torch.nan


def failures(request_ids: Sequence[str], broken: BoolArray, emptied: BoolArray) -> list[tuple[str, str, str]]:
    """Id, reason and message of each; constraints that exclude one another are the client's mistake."""
    causes = (
        (broken, "invalid_logits", "the model's logits for the next token are not finite"),
        (emptied & ~broken, "invalid_value", "the request's constraints leave no possible next token"),
    )
    return [
        (request_ids[row], reason, message)
        for rows, reason, message in causes
        for row in np.flatnonzero(rows).tolist()
    ]


def _logprobs(
    raw: torch.Tensor, rows: list[int], tokens: Int64Array, batch: SamplingBatch
) -> list[tuple[str, Logprobs]]:
    """One position for each row that asked, each with the number of alternatives it asked for."""
    counts = [batch.spec(row).logprobs or 0 for row in rows]
    every = gather_logprobs(raw, tokens[rows], max(counts))
    return [(batch.request_ids[row], position_of(every, place, counts[place])) for place, row in enumerate(rows)]


def _select(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Those rows, without a copy when it is all of them."""
    return logits if len(rows) == len(logits) else logits[torch.tensor(rows, device=logits.device)]
