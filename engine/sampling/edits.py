"""Everything done to a step's logits before temperature: masks, allowed tokens, bans, biases, penalties."""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.constraints import TokenEdits, allow_only, apply_bitmask, banned_by_bad_words
from vllm_obs.engine.sampling.penalties import Penalties, apply_penalties


def apply_edits(logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks | None) -> bool:
    """Apply everything but temperature and truncation in place; False when no row asked for any of it."""
    masked = _apply_masks(logits, batch.request_ids, masks) if masks is not None else ()
    if not batch.needed & Need.EDITS:
        return bool(masked)
    for index in batch.indices(Need.ALLOWED):
        allow_only(logits, index, batch.constraints(index).allowed_ids)
    edits = TokenEdits()
    for index in batch.indices(Need.BAD_WORDS):
        edits.ban(index, banned_by_bad_words(batch.constraints(index).bad_words, batch.output_ids(index)))
    for index in batch.indices(Need.MIN_TOKENS):
        num_outputs = batch.num_tokens[index] - batch.num_prompt_tokens[index]
        if num_outputs >= batch.spec(index).min_tokens:
            continue
        if index not in masked or not _can_only_end(logits[index], batch.constraints(index).ending_ids):
            edits.ban(index, batch.constraints(index).ending_ids)
    for index in batch.indices(Need.BIAS):
        edits.bias(index, batch.constraints(index).bias_ids, batch.constraints(index).bias_values)
    edits.apply(logits)
    if batch.needed & Need.PENALTIES:
        apply_penalties(logits, [_penalties(index, batch) for index in batch.indices(Need.PENALTIES)])
    return True


def _apply_masks(logits: torch.Tensor, request_ids: Sequence[str], masks: GrammarMasks) -> Collection[int]:
    """Apply the masks; the rows that have one."""
    place = {request_id: index for index, request_id in enumerate(request_ids)}
    chosen = [(place[name], row) for row, name in enumerate(masks.request_ids) if name in place]
    if not chosen:
        return ()
    rows, mask_rows = zip(*chosen, strict=True)
    apply_bitmask(logits, rows, masks.bitmask[list(mask_rows)])
    return set(rows)


def _can_only_end(row: torch.Tensor, ending_ids: npt.NDArray[np.int64]) -> bool:
    """Whether a grammar leaves nothing but the end: then min_tokens cannot be kept."""
    possible = torch.isfinite(row)
    possible[torch.from_numpy(ending_ids).to(row.device)] = False
    return not bool(possible.any())


def _penalties(index: int, batch: SamplingBatch) -> Penalties:
    spec = batch.spec(index)
    return Penalties(
        index, spec.repetition_penalty, spec.presence_penalty, spec.frequency_penalty, batch.seen(index)
    )
