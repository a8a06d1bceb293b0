"""EditPlan: what a step's rows want changed in their logits, as arrays that kernels read.

The same edits, in the same order, as `edits.apply_edits`.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.constraints import WORD_BITS, banned_by_bad_words

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class MaskRows:
    """rows: int32 (M,), no row twice. bitmask: int32 (M, words), 1 for a token that may be."""

    rows: Int32Array
    bitmask: Int32Array


@dataclass(frozen=True)
class TokenRows:
    """Tokens of some rows, one after another, and what is said of each.

    rows: int32 (P,), no row twice. starts: int32 (P + 1,) into token_ids, int32 (N,). columns: float32, of N or P.
    """

    rows: Int32Array
    starts: Int32Array
    token_ids: Int32Array
    columns: list[Float32Array]

    @classmethod
    def of(cls, rows: list[int], tokens: list[Int64Array], columns: list[Float32Array]) -> "TokenRows":
        """From the tokens of each row."""
        starts = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
        return cls(np.array(rows, np.int32), starts, np.concatenate(tokens).astype(np.int32), columns)

    @property
    def max_num_tokens(self) -> int:
        """Of one row."""
        return int(np.diff(self.starts).max())

    @property
    def arrays(self) -> list[Array]:
        """What a device needs of it."""
        return [self.rows, self.starts, self.token_ids, *self.columns]


@dataclass
class EditPlan:
    """masks are applied in turn, then biases, then penalties.

    biases: of each token, -inf for a ban. penalties: how often each token was generated; then by row repetition,
    presence and frequency.
    """

    masks: list[MaskRows] = field(default_factory=list)
    biases: TokenRows | None = None
    penalties: TokenRows | None = None

    def __bool__(self) -> bool:
        return bool(self.masks or self.biases or self.penalties)

    @property
    def arrays(self) -> list[Array]:
        """What a device needs of all of it, in order."""
        arrays: list[Array] = []
        for mask in self.masks:
            arrays += [mask.rows, mask.bitmask]
        for tokens in (self.biases, self.penalties):
            arrays += tokens.arrays if tokens is not None else []
        return arrays


def edit_plan(batch: SamplingBatch, masks: GrammarMasks | None) -> EditPlan:
    """Everything but temperature and truncation that the rows ask for."""
    plan = EditPlan()
    vocab_size = batch.columns.vocab_size
    masked = _masked_rows(batch, masks)
    if masked:
        plan.masks.append(MaskRows(np.array(list(masked), np.int32), np.stack(list(masked.values()))))
    if not batch.needed & Need.EDITS:
        return plan
    if allowed := batch.indices(Need.ALLOWED):
        bits = [_bits_of(batch.constraints(index).allowed_ids, vocab_size) for index in allowed]
        plan.masks.append(MaskRows(np.array(allowed, np.int32), np.stack(bits)))
    plan.biases = _biases(batch, masked)
    plan.penalties = _penalties(batch)
    return plan


def _masked_rows(batch: SamplingBatch, masks: GrammarMasks | None) -> dict[int, Int32Array]:
    """The words of each row under a grammar."""
    if masks is None:
        return {}
    place = {request_id: index for index, request_id in enumerate(batch.request_ids)}
    return {place[name]: masks.bitmask[number] for number, name in enumerate(masks.request_ids) if name in place}


def _biases(batch: SamplingBatch, masked: dict[int, Int32Array]) -> TokenRows | None:
    tokens: dict[int, list[Int64Array]] = {}
    values: dict[int, list[Float32Array]] = {}

    def add(index: int, ids: Int64Array, biases: Float32Array) -> None:
        if len(ids):
            tokens.setdefault(index, []).append(ids)
            values.setdefault(index, []).append(biases)

    def ban(index: int, ids: Int64Array) -> None:
        add(index, ids, np.full(len(ids), -np.inf, np.float32))

    for index in batch.indices(Need.BAD_WORDS):
        ban(index, banned_by_bad_words(batch.constraints(index).bad_words, batch.output_ids(index)))
    for index in batch.indices(Need.MIN_TOKENS):
        num_outputs = batch.num_tokens[index] - batch.num_prompt_tokens[index]
        if num_outputs < batch.spec(index).min_tokens and not _can_only_end(batch, index, masked.get(index)):
            ban(index, batch.constraints(index).ending_ids)
    for index in batch.indices(Need.BIAS):
        add(index, batch.constraints(index).bias_ids, batch.constraints(index).bias_values)
    if not tokens:
        return None
    joined = [np.concatenate(parts) for parts in tokens.values()]
    biases = np.concatenate([part for parts in values.values() for part in parts])
    return TokenRows.of(list(tokens), joined, [biases])


def _penalties(batch: SamplingBatch) -> TokenRows | None:
    rows = [index for index in batch.indices(Need.PENALTIES) if len(batch.seen(index).token_ids)]
    if not rows:
        return None
    seen, specs = [batch.seen(index) for index in rows], [batch.spec(index) for index in rows]
    counts = np.concatenate([one.counts for one in seen])
    by_row = [
        np.array(column, np.float32)
        for column in zip(
            *((one.repetition_penalty, one.presence_penalty, one.frequency_penalty) for one in specs), strict=True
        )
    ]
    return TokenRows.of(rows, [one.token_ids for one in seen], [counts, *by_row])


def _can_only_end(batch: SamplingBatch, index: int, words: Int32Array | None) -> bool:
    """Whether a grammar leaves nothing but the end: then min_tokens cannot be kept."""
    if words is None:
        return False
    possible = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little").astype(np.bool_)
    possible = possible[: batch.columns.vocab_size]
    constraints = batch.constraints(index)
    if index in batch.indices(Need.ALLOWED):
        is_allowed = np.zeros_like(possible)
        is_allowed[constraints.allowed_ids[constraints.allowed_ids < len(possible)]] = True
        possible &= is_allowed
    possible[constraints.ending_ids[constraints.ending_ids < len(possible)]] = False
    return not possible.any()


def _bits_of(ids: Int64Array, vocab_size: int) -> Int32Array:
    """A mask of these tokens."""
    is_kept = np.zeros(-(-vocab_size // WORD_BITS) * WORD_BITS, np.bool_)
    is_kept[ids] = True
    return np.packbits(is_kept, bitorder="little").view(np.int32)
