"""The sampling parameters of the rows a worker holds, in columns, and a step's view of them."""

from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.messages import Int32Array, SamplingSpec
from vllm_obs.engine.sampling.constraints import RowConstraints
from vllm_obs.engine.sampling.penalties import SeenTokens
from vllm_obs.engine.sampling.truncation import Filters

Int64Array = npt.NDArray[np.int64]

GREEDY_BELOW = 1e-5
"""Temperatures under this are taken as 0: dividing by them would leave one token anyway."""
_WORD = 0xFFFF_FFFF_FFFF_FFFF


class Need(IntFlag):
    """What a row asks of the sampler beyond the best token; a step does only what some row needs."""

    RANDOM = 1
    FILTERS = 2
    PENALTIES = 4
    BIAS = 8
    ALLOWED = 16
    BAD_WORDS = 32
    MIN_TOKENS = 64
    LOGPROBS = 128
    EDITS = PENALTIES | BIAS | ALLOWED | BAD_WORDS | MIN_TOKENS


def needs_of(spec: SamplingSpec) -> Need:
    """What one sequence's parameters ask for."""
    is_random = spec.temperature >= GREEDY_BELOW
    is_filtered = is_random and (spec.top_k > 0 or spec.top_p < 1.0 or spec.min_p > 0.0)
    has_penalty = spec.repetition_penalty != 1.0 or spec.presence_penalty != 0.0 or spec.frequency_penalty != 0.0
    asked = {
        Need.RANDOM: is_random,
        Need.FILTERS: is_filtered,
        Need.PENALTIES: has_penalty,
        Need.BIAS: bool(spec.logit_bias),
        Need.ALLOWED: bool(spec.allowed_token_ids),
        Need.BAD_WORDS: bool(spec.bad_words_ids),
        Need.MIN_TOKENS: spec.min_tokens > 0,
        Need.LOGPROBS: spec.logprobs is not None,
    }
    return Need(sum(need for need, is_asked in asked.items() if is_asked))


class SamplingColumns:
    """One entry per row of the input batch. Rows are set whole, moved and cleared; nothing is shared."""

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.needs = np.zeros(max_num_rows, np.int64)
        self.temperatures = np.zeros(max_num_rows, np.float32)
        self.top_ks = np.zeros(max_num_rows, np.int32)
        self.top_ps = np.zeros(max_num_rows, np.float32)
        self.min_ps = np.zeros(max_num_rows, np.float32)
        self.seeds = np.zeros(max_num_rows, np.uint64)
        self.sequence_indices = np.zeros(max_num_rows, np.uint64)
        self.specs: list[SamplingSpec | None] = [None] * max_num_rows
        self.constraints: list[RowConstraints | None] = [None] * max_num_rows
        self.seen: list[SeenTokens | None] = [None] * max_num_rows

    def set_row(self, row: int, spec: SamplingSpec, token_ids: Int32Array, num_prompt_tokens: int) -> None:
        """Fill a row from a sequence's parameters and all its tokens so far."""
        needs = needs_of(spec)
        self.clear_row(row)
        self.specs[row] = spec
        self.needs[row] = needs
        self.temperatures[row] = spec.temperature
        self.top_ks[row], self.top_ps[row], self.min_ps[row] = spec.top_k, spec.top_p, spec.min_p
        self.seeds[row] = spec.seed & _WORD
        self.sequence_indices[row] = spec.sequence_index
        if needs & (Need.EDITS & ~Need.PENALTIES):
            self.constraints[row] = RowConstraints.of(spec, self.vocab_size)
        if needs & Need.PENALTIES:
            seen_in_prompt = token_ids[: num_prompt_tokens if spec.repetition_penalty != 1.0 else 0]
            self.seen[row] = SeenTokens(seen_in_prompt, token_ids[num_prompt_tokens:])

    def move_row(self, source: int, target: int) -> None:
        """Put row `source` in the place of `target` and clear `source`."""
        for column in self._numbers():
            column[target] = column[source]
        self.specs[target] = self.specs[source]
        self.constraints[target] = self.constraints[source]
        self.seen[target] = self.seen[source]
        self.clear_row(source)

    def clear_row(self, row: int) -> None:
        """Forget everything about a row."""
        for column in self._numbers():
            column[row] = 0
        self.specs[row] = self.constraints[row] = self.seen[row] = None

    def _numbers(self) -> tuple[npt.NDArray[np.generic], ...]:
        filters = (self.temperatures, self.top_ks, self.top_ps, self.min_ps)
        return (self.needs, *filters, self.seeds, self.sequence_indices)

    @property
    def reads_outputs(self) -> bool:
        """Whether any row is sampled by what it has generated, beyond how much that is."""
        return bool(np.bitwise_or.reduce(self.needs) & (Need.PENALTIES | Need.BAD_WORDS))

    @property
    def has_seen(self) -> bool:
        """Whether any row counts its tokens."""
        return bool(np.bitwise_or.reduce(self.needs) & Need.PENALTIES)

    def add_output(self, row: int, token: int) -> None:
        """Count a token that the row's sequence generated."""
        if (seen := self.seen[row]) is not None:
            seen.add(token)


@dataclass
class SamplingBatch:
    """The rows one step samples, in the order of its logits.

    rows: int64 (R,) into the columns. num_tokens, num_prompt_tokens: int64 (R,). token_ids: int32
    (max rows, max length), the input batch's own, indexed by `rows`.
    """

    columns: SamplingColumns
    rows: Int64Array
    request_ids: list[str]
    num_tokens: Int64Array
    num_prompt_tokens: Int64Array
    token_ids: Int32Array

    @cached_property
    def needs(self) -> Int64Array:
        """int64 (R,): `Need` bits of each row."""
        return self.columns.needs[self.rows]

    @cached_property
    def needed(self) -> int:
        """The `Need` bits that any row has."""
        return int(np.bitwise_or.reduce(self.needs)) if len(self.rows) else 0

    def alone(self, index: int) -> "SamplingBatch":
        """One of the step's rows, as if it were the only one."""
        only = slice(index, index + 1)
        return SamplingBatch(
            self.columns,
            self.rows[only],
            self.request_ids[only],
            self.num_tokens[only],
            self.num_prompt_tokens[only],
            self.token_ids,
        )

    def indices(self, need: Need) -> list[int]:
        """Which rows (indices into the step's logits) have this need."""
        return np.flatnonzero(self.needs & need).tolist() if self.needed & need else []

    def spec(self, index: int) -> SamplingSpec:
        """Parameters of one of the step's rows."""
        spec = self.columns.specs[int(self.rows[index])]
        assert spec is not None, "a row in a plan has parameters"
        return spec

    def constraints(self, index: int) -> RowConstraints:
        """Constraints of one of the step's rows that has some."""
        constraints = self.columns.constraints[int(self.rows[index])]
        assert constraints is not None, "a row that needs edits has constraints"
        return constraints

    def seen(self, index: int) -> SeenTokens:
        """What one of the step's rows with penalties has seen."""
        seen = self.columns.seen[int(self.rows[index])]
        assert seen is not None, "a row with penalties keeps what it has seen"
        return seen

    def filters(self, index: int) -> Filters:
        """Truncation of one of the step's rows."""
        spec = self.spec(index)
        return Filters(spec.temperature, spec.top_k, spec.top_p, spec.min_p)

    def output_ids(self, index: int) -> Int32Array:
        """int32: what one of the step's rows has generated so far."""
        return self.token_ids[self.rows[index], self.num_prompt_tokens[index] : self.num_tokens[index]]
