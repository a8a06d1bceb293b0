"""Everything done to a step's logits before temperature: masks, allowed tokens, bans, biases, penalties."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.choice import has_draw_kernel
from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.constraints import (
    TokenEdits,
    allow_only,
    apply_bitmask,
    banned_by_bad_words,
    is_allowed,
)
from vllm_obs.engine.sampling.penalties import Penalties, apply_penalties

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_IS_RANDOM, _IS_EDITED = int(Need.RANDOM), int(Need.EDITS)
_IS_LOOKED_THROUGH = int(Need.RANDOM | Need.FILTERS | Need.EDITS)
"""Of these needs a row that is drawn under its mask has the first alone: filters and edits want all logits masked.

Plain numbers: a flag's operators take a microsecond each.
"""


class Edited(NamedTuple):
    """What became of a step's rows.

    `changed`: rows whose best token may be another now. `masks`: rows that are drawn under these words of theirs,
    int32; their logits were left as they are.
    """

    changed: list[int]
    masks: dict[int, Int32Array]


def apply_edits(
    logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks | None, best: Int64Array
) -> Edited:
    """Apply everything but temperature and truncation in place.

    best: int64 (R,), the best tokens before. A greedy row of which its grammar allows that one stays as it is.
    """
    masked = _masked_rows(batch.request_ids, masks) if masks is not None else {}
    edited = _apply_masks(logits, batch, masks, masked, best) if masks is not None and masked else Edited([], {})
    if not batch.needed & Need.EDITS:
        return edited
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
    return Edited(sorted({*edited.changed, *batch.indices(Need.EDITS)}), edited.masks)


def _masked_rows(request_ids: Sequence[str], masks: GrammarMasks) -> dict[int, int]:
    """The rows under a grammar, each with the number of its mask."""
    if masks.request_ids == request_ids:
        return {row: row for row in range(len(request_ids))}
    place = {request_id: index for index, request_id in enumerate(request_ids)}
    return {place[name]: number for number, name in enumerate(masks.request_ids) if name in place}


def _apply_masks(
    logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks, masked: dict[int, int], best: Int64Array
) -> Edited:
    """Apply the masks that change what is chosen; row by row, as numpy takes longer to begin with so few."""
    edited, applied = Edited([], {}), dict[int, int]()
    needs, best_ids, is_drawn_masked = batch.needs.tolist(), best.tolist(), has_draw_kernel(logits)
    for row, number in masked.items():
        if is_drawn_masked and needs[row] & _IS_LOOKED_THROUGH == _IS_RANDOM:
            edited.masks[row] = masks.bitmask[number]
            continue
        is_banned = not is_allowed(best_ids[row], masks.bitmask, number)
        if is_banned:
            edited.changed.append(row)
        if is_banned or needs[row] & (_IS_RANDOM | _IS_EDITED):
            applied[row] = number
    if applied:
        numbers = list(applied.values())
        is_whole = numbers == list(range(len(masks.bitmask)))
        apply_bitmask(logits, list(applied), masks.bitmask if is_whole else masks.bitmask[numbers])
    return edited


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
