"""One sequence as the core knows it: its tokens, how many of them are computed, and the blocks that hold them."""

from array import array
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.messages import (
    Detours,
    EngineCoreRequest,
    FinishReason,
    Float32Array,
    Int32Array,
    Logprobs,
)
from vllm_obs.engine.pooling.kinds import READING_ALL

NO_TOKEN = -1
NOT_ENDED = -1


class RequestStatus(IntEnum):
    """Where a sequence stands in the scheduler."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    ENDED = 3


class Grammar(Protocol):
    """Where one sequence stands in what its output must match."""

    @property
    def is_ready(self) -> bool:
        """Whether it can begin, or be told that it cannot."""

    @property
    def is_over(self) -> bool:
        """Whether no token but an end of sequence may follow."""

    def begin(self) -> None:
        """Stand at the beginning; RequestError or RequestFailedError where there is none."""

    def write_mask(self, words: npt.NDArray[np.int32], address: int) -> None:
        """Write the tokens that may come next, one bit each, into words that begin at this address."""

    def accept(self, token_id: int) -> None:
        """Go on by one token; RequestFailedError where it does not fit."""


class Request:
    """One sequence. `token_ids` is the prompt and then the output, in one array that only grows.

    `rank` orders sequences under the policy: smaller goes first and is preempted last. `num_tokens` counts
    known tokens; `num_planned_tokens` adds those that plans in flight will sample. `num_computed_tokens` runs
    ahead to the end of the last plan. `num_cached_tokens` is the prompt tokens found in the prefix cache when
    the sequence was first admitted, `num_found_tokens` those found when it was admitted last; one that does not
    trust the cache computes everything itself. `finish_reason` is a FinishReason, or -1 while it lives.
    """

    __slots__ = (
        "block_hashes",
        "block_ids",
        "cache_salt",
        "client_index",
        "ending_token_ids",
        "error",
        "finish_reason",
        "grammar",
        "last_token_id",
        "max_num_tokens",
        "next_cache_at",
        "num_cached_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_found_tokens",
        "num_planned_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_sent_tokens",
        "num_slots",
        "num_tokens",
        "pooled",
        "prompt_logprobs",
        "rank",
        "request_id",
        "sampling",
        "scheduled_at",
        "status",
        "stop_token_id",
        "taken_at",
        "token_ids",
        "trusts_cache",
        "untold_detours",
    )

    def __init__(
        self,
        message: EngineCoreRequest,
        rank: tuple[int, int],
        max_model_len: int,
        grammar: Grammar | None = None,
    ) -> None:
        self.request_id = message.request_id
        self.client_index = message.client_index
        self.sampling = message.sampling
        self.cache_salt = message.cache_salt
        self.rank = rank
        self.grammar = grammar
        self.status = RequestStatus.WAITING

        self.token_ids = array("i", message.prompt_token_ids.tobytes())
        self.num_prompt_tokens = self.num_tokens = self.num_planned_tokens = len(self.token_ids)
        self.max_num_tokens = min(self.num_prompt_tokens + max(self.sampling.max_tokens, 1), max_model_len)
        self.ending_token_ids = frozenset(self.sampling.eos_token_ids + self.sampling.stop_token_ids)
        self.num_computed_tokens = 0
        self.num_sent_tokens = 0
        self.last_token_id = NO_TOKEN
        """What was sampled last since it was admitted, if anything was."""
        self.num_preemptions = 0
        self.num_cached_tokens = self.num_found_tokens = 0
        self.trusts_cache = True

        self.taken_at = 0
        self.scheduled_at = 0
        """When it was first scheduled, until that was told."""
        self.untold_detours: Detours | None = None

        self.block_ids: list[int] = []
        self.num_slots = 0
        self.block_hashes: list[bytes] = []
        self.num_cached_blocks = 0
        self.next_cache_at = 0

        self.prompt_logprobs: list[Logprobs] = []
        self.pooled: Float32Array | None = None
        self.finish_reason = NOT_ENDED
        self.stop_token_id = NO_TOKEN
        self.error: tuple[str, str] | None = None

    @property
    def num_output_tokens(self) -> int:
        """How many tokens were sampled."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_kept_tokens(self) -> int:
        """The tokens its client gets: none where the prompt was only to be scored."""
        return min(self.num_output_tokens, self.sampling.max_tokens)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether every prompt position must still pass the model, so that cached blocks cannot stand in."""
        return self.sampling.prompt_logprobs is not None and self.num_output_tokens == 0

    @property
    def passes_whole_prompt(self) -> bool:
        """Whether every prompt position must pass the model, for its log-probability or for its hidden state."""
        return self.wants_prompt_logprobs or self.sampling.pooling in READING_ALL

    def known_token_ids(self) -> Int32Array:
        """A copy of the prompt and the output so far, int32, shape (num_tokens,)."""
        return np.array(self.token_ids, dtype=np.int32)

    def start_over(self) -> None:
        """Forget what was computed (the blocks are gone); the tokens stay."""
        self.status = RequestStatus.PREEMPTED
        self.num_preemptions += 1
        self.num_computed_tokens = 0
        self.num_planned_tokens = self.num_tokens
        self.prompt_logprobs.clear()

    def end(self, reason: FinishReason, stop_token_id: int = NO_TOKEN) -> None:
        """Mark the one ending."""
        self.status = RequestStatus.ENDED
        self.finish_reason = int(reason)
        self.stop_token_id = stop_token_id
