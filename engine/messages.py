"""What crosses between the API server and the EngineCore: NamedTuples of plain values, in columns."""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

WIRE_VERSION = 1

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class RequestType(IntEnum):
    """The one-byte frame that says what a message to the EngineCore is."""

    ADD = 0
    ABORT = 1
    UTILITY = 2
    WAKEUP = 3
    EXECUTOR_FAILED = 4


class FinishReason(IntEnum):
    """Why a sequence ended; the names in lower case are vLLM's label values."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    @property
    def label(self) -> str:
        """The word clients and metrics see."""
        return self.name.lower()


class SamplingSpec(NamedTuple):
    """What the core and the worker need to sample one sequence; text and stop strings stay outside.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 and `min_p` 0 switch the filter off. `seed` is never
    None here: the input processor draws one for requests without. With `max_tokens` 0 the prompt is only
    scored: one token is sampled, and nobody's. `logprobs` is the number of alternatives (0 = only the sampled
    token's), None for none. `eos_token_ids` is empty under ignore_eos. `grammar` is the text of a grammar
    (`engine/structured/grammar_text.py`) that the output must match, empty for none. `pooling` is how the prompt
    is to become one vector (`engine/pooling/kinds.py`), empty where tokens are wanted; `max_tokens` is 0 then.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    sequence_index: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    pooling: str = ""


class EngineCoreRequest(NamedTuple):
    """ADD: one sequence. `prompt_token_ids` is int32, shape (num_prompt_tokens,), sent out of band."""

    request_id: str
    client_index: int
    generation: int
    prompt_token_ids: Int32Array
    sampling: SamplingSpec
    priority: int
    cache_salt: str | None
    submitted_at: int


class AbortRequests(NamedTuple):
    """ABORT: sequences to end, each with the reason the OutputProcessor recorded (`FinishReason`)."""

    client_index: int
    generation: int
    request_ids: list[str]
    reason: int


class UtilityCall(NamedTuple):
    """UTILITY: a named method of the EngineCore with plain arguments; answered in `EngineCoreOutputs.utility`."""

    client_index: int
    generation: int
    call_id: int
    method: str
    args: list[Any]


class UtilityResult(NamedTuple):
    """The answer to a `UtilityCall`; `error` is empty when it worked."""

    call_id: int
    value: Any
    error: str


class Logprobs(NamedTuple):
    """Log-probabilities for some positions, columns first being the token itself, then the best alternatives.

    `token_ids` int32 and `logprobs` float32 have shape (positions, k + 1); `ranks` int32 (positions,) is the
    1-based rank of the token itself among the whole vocabulary. Values are of the model's own distribution
    (before temperature and penalties), as vLLM's `raw_logprobs`.
    """

    token_ids: Int32Array
    logprobs: Float32Array
    ranks: Int32Array


class SchedulerStats(NamedTuple):
    """Levels after a step, for the log line and the readiness of a client."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_preemptions_total: int


class Detours(NamedTuple):
    """How long a sequence was held up in the core so far, in ns; `early_ns` of all that before its first token."""

    preempted_ns: int = 0
    recompute_ns: int = 0
    stalled_ns: int = 0
    early_ns: int = 0


class EngineCoreOutputs(NamedTuple):
    """One step's outputs for one API server, in columns: row i belongs to `request_ids[i]`.

    Row i owns `num_new_tokens[i]` entries of the flat `new_token_ids` (each an int32), in order.
    `finish_reasons[i]` is a `FinishReason` or -1; `stop_token_ids[i]` is the stop token that ended it or -1
    (-1 also for end-of-sequence). `num_cached_tokens[i]` is the prompt tokens found in the prefix cache.
    `logprobs` and `prompt_logprobs` hold (row, Logprobs) pairs for the rows that asked; a row's prompt
    log-probabilities come once, with its first new token (or its ending), covering prompt positions 1…n-1.
    `errors` holds (row, reason, message) for rows with FinishReason.ERROR. `timings` holds (row, when it was
    taken, when it was first scheduled; monotonic ns) for each sequence's first row after that. `detours` holds
    (row, Detours) where a sequence was held up since its row before; a detour that lasts is told when it ends.
    `pooled` holds (row, float32 vector of the model's width) for the endings of those that asked for one.
    `scheduled_ids` were scheduled for the first time and have no row yet, since their prompts take several steps;
    they are told where the queue has a bound.
    """

    client_index: int
    engine_index: int
    generation: int
    step: int
    request_ids: list[str]
    num_new_tokens: list[int]
    new_token_ids: list[int]
    finish_reasons: list[int]
    stop_token_ids: list[int]
    num_cached_tokens: list[int]
    logprobs: list[tuple[int, Logprobs]]
    prompt_logprobs: list[tuple[int, Logprobs]]
    errors: list[tuple[int, str, str]]
    timings: list[tuple[int, int, int]]
    detours: list[tuple[int, Detours]]
    utility: UtilityResult | None
    stats: SchedulerStats | None
    sampled_at: int
    sent_at: int
    pooled: list[tuple[int, Float32Array]] = []  # noqa: RUF012 - no message is changed once made
    scheduled_ids: list[str] = []  # noqa: RUF012


class EngineFacts(NamedTuple):
    """What READY carries: the facts of an engine that its client relies on."""

    engine_index: int
    pid: int
    model: str
    dtype: str
    device: str
    max_model_len: int
    vocab_size: int
    num_gpu_blocks: int
    block_size: int
    kv_cache_size_tokens: int
    kv_cache_max_concurrency: float
    world_size: int
    data_parallel_size: int
    phases: list[tuple[str, float]]
    """(name, seconds) of the start-up phases, in order."""
