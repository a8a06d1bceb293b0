"""What a front end gets back: deltas while a sequence runs, and whole outputs offline."""

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.messages import Detours, Float32Array

NO_DETOURS = Detours()


class TokenLogprob(NamedTuple):
    """One token's log-probability: finite (never below -9999), with its 1-based rank in the vocabulary.

    `top` holds the best alternatives as (token id, log-probability, rank), best first; it is empty when
    only the token's own was asked for, and holds the token itself too when it is among the best.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float, int]]


class SequenceTiming(NamedTuple):
    """The moments of one sequence from its tokens to its text (monotonic ns); 0 for what did not take place.

    `taken_at` and `scheduled_at` are the core's, `returned_at` is when its last tokens were taken here.
    """

    taken_at: int
    scheduled_at: int
    first_token_at: int
    last_token_at: int
    tokenized_at: int = 0
    returned_at: int = 0
    ended_at: int = 0
    detours: Detours = NO_DETOURS


@dataclass(slots=True)
class SequenceDelta:
    """What is new in one sequence since its delta before; a reader that lags gets several merged into one.

    `request_id` is the engine's own id of the sequence. `text` may be empty while `token_ids` is not (half a
    character, or the beginning of a stop string, is held back). `logprobs` is parallel to `token_ids`, None
    when not asked for. `prompt_token_ids` and `prompt_logprobs` come once, with the sequence's first delta
    (the first entry of `prompt_logprobs` is None: nothing predicts the first token). The `num_…` counts are
    totals so far. The last delta of a sequence has `finish_reason` (stop, length, abort, error); `stop_reason`
    is the stop string or stop token id that ended it, None for end-of-sequence, and `timing` is there. With
    `finish_reason` error, `error` says why, with its `reason` from the closed set. `pooled` is the vector of a
    sequence that was only to become one, in the model's own width.
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: RequestFailedError | None = None
    timing: SequenceTiming | None = None
    pooled: Float32Array | None = None

    def absorb(self, later: "SequenceDelta") -> None:
        """Take in the next delta of the same sequence, so that this one says both."""
        self.text += later.text
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.prompt_token_ids = self.prompt_token_ids or later.prompt_token_ids
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        self.num_cached_tokens = later.num_cached_tokens
        self.num_output_tokens = later.num_output_tokens
        self.error = later.error
        self.timing = later.timing
        self.pooled = later.pooled if self.pooled is None else self.pooled


@dataclass(frozen=True)
class Logprob:
    """One candidate at one position, offline; `decoded_token` is its text alone."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    """One finished or growing sequence of a request, offline.

    `logprobs[i]` maps token ids to their `Logprob` at output position i, the sampled token among them.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A request's sequences so far, offline. `prompt` is None when it was given as token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    pooled: Float32Array | None = None
