"""The cheap bounds that the core checks again on every ADD: what it will index, allocate or compare with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.messages import EngineCoreRequest, SamplingSpec
from vllm_obs.engine.pooling.kinds import POOLING_KINDS

MAX_ID_CHARS = 256
MAX_SALT_CHARS = 4096
MAX_STOP_TOKEN_IDS = 4096
MAX_BAD_WORDS = 4096
MAX_BAD_WORD_TOKENS = 1024
MAX_BAD_WORDS_TOKENS = 65_536
"""Of all words together."""

_INTEGERS = (
    ("top_k", 0, 2**31 - 1),
    ("seed", -(2**63), 2**64 - 1),
    ("sequence_index", 0, 2**31 - 1),
    ("max_tokens", 0, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
)
_NUMBERS = (
    ("temperature", 0.0, math.inf),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, math.inf),
    ("presence_penalty", -math.inf, math.inf),
    ("frequency_penalty", -math.inf, math.inf),
)
_ABOVE_ZERO = ("top_p", "repetition_penalty")


@dataclass(frozen=True)
class RequestBounds:
    """What a request may name: token ids below `vocab_size`, prompts shorter than the context and the cache."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    num_cache_tokens: int
    generates: bool = True
    pools: bool = True

    @classmethod
    def from_config(cls, config: VllmConfig, num_blocks: int) -> "RequestBounds":
        """The bounds of an engine with so many KV cache blocks."""
        model = config.model
        vocab_size = model.architecture.vocab_size
        max_logprobs = model.max_logprobs if model.max_logprobs >= 0 else vocab_size
        return cls(
            vocab_size,
            model.max_model_len,
            max_logprobs,
            num_blocks * config.cache.block_size,
            generates=not model.architecture.is_encoder,
            pools=not model.is_synthetic,
        )

    def check(self, request: EngineCoreRequest) -> None:
        """RequestError, with the field, the number and the limit, for what the engine cannot take."""
        if not 0 < len(request.request_id) <= MAX_ID_CHARS:
            raise RequestError(f"request_id has {len(request.request_id)} characters; 1 to {MAX_ID_CHARS} may be.")
        self._check_prompt(request)
        _require_integer("priority", request.priority, -(2**31), 2**31 - 1)
        _require_integer("submitted_at", request.submitted_at, 0, 2**63 - 1)
        if request.cache_salt is not None and not 0 < len(request.cache_salt) <= MAX_SALT_CHARS:
            raise RequestError(
                f"cache_salt has {len(request.cache_salt)} characters; 1 to {MAX_SALT_CHARS} may be.", "cache_salt"
            )
        self._check_sampling(request.sampling)

    def _check_prompt(self, request: EngineCoreRequest) -> None:
        prompt = request.prompt_token_ids
        if prompt.dtype != np.int32 or prompt.ndim != 1:
            raise RequestError(
                f"The prompt is {prompt.ndim}-dimensional {prompt.dtype}, not a row of int32.", "prompt"
            )
        if not len(prompt):
            raise RequestError("The prompt has no tokens.", "prompt", reason="empty_prompt")
        longest = min(self.max_model_len - (not request.sampling.pooling), self.num_cache_tokens)
        if len(prompt) > longest:
            raise RequestError(
                f"The prompt has {len(prompt)} tokens; at most {longest} fit in the context of "
                f"{self.max_model_len} tokens and the KV cache of {self.num_cache_tokens}.",
                "prompt",
                reason="context_length_exceeded",
            )
        self._require_token_ids("prompt", (int(prompt.min()), int(prompt.max())))

    def _check_sampling(self, sampling: SamplingSpec) -> None:
        self._check_task(sampling)
        for name, low, high in _INTEGERS:
            _require_integer(name, getattr(sampling, name), low, high)
        for name, least, most in _NUMBERS:
            _require_number(name, getattr(sampling, name), least, most)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(sampling, name) is not None:
                _require_integer(name, getattr(sampling, name), 0, self.max_logprobs)
        self._check_token_lists(sampling)

    def _check_task(self, sampling: SamplingSpec) -> None:
        if not (self.pools if sampling.pooling else self.generates):
            made = "vectors of prompts" if sampling.pooling else "tokens"
            raise RequestError(f"This model makes no {made}.", "model", reason="unsupported")
        if sampling.pooling and (sampling.pooling not in POOLING_KINDS or sampling.max_tokens):
            raise RequestError(f"pooling is one of {', '.join(POOLING_KINDS)}, with max_tokens 0.", "pooling")

    def _check_token_lists(self, sampling: SamplingSpec) -> None:
        for name, max_items in (
            ("stop_token_ids", MAX_STOP_TOKEN_IDS),
            ("eos_token_ids", MAX_STOP_TOKEN_IDS),
            ("allowed_token_ids", self.vocab_size),
        ):
            self._require_list(name, getattr(sampling, name), max_items)
        self._require_list("logit_bias", [token_id for token_id, _ in sampling.logit_bias], self.vocab_size)
        for _, bias in sampling.logit_bias:
            _require_number("logit_bias", bias, -math.inf, math.inf)
        if len(sampling.bad_words_ids) > MAX_BAD_WORDS:
            raise RequestError(
                f"bad_words has {len(sampling.bad_words_ids)} entries; at most {MAX_BAD_WORDS} may be.",
                "bad_words",
            )
        if (num_tokens := sum(map(len, sampling.bad_words_ids))) > MAX_BAD_WORDS_TOKENS:
            raise RequestError(
                f"bad_words has {num_tokens} tokens in all; at most {MAX_BAD_WORDS_TOKENS} may be.", "bad_words"
            )
        for word in sampling.bad_words_ids:
            self._require_list("bad_words", word, MAX_BAD_WORD_TOKENS)

    def _require_list(self, name: str, token_ids: Sequence[int], max_items: int) -> None:
        if len(token_ids) > max_items:
            raise RequestError(f"{name} has {len(token_ids)} entries; at most {max_items} may be.", name)
        self._require_token_ids(name, token_ids)

    def _require_token_ids(self, name: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        if not set(map(type, token_ids)) <= {int}:
            raise RequestError(f"{name} holds what is not an integer.", name)
        for token_id in (min(token_ids), max(token_ids)):
            _require_integer(name, token_id, 0, self.vocab_size - 1)


def _require_integer(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int:
        raise RequestError(f"{name} is {type(value).__name__}, not an integer.", name)
    if not low <= value <= high:
        raise RequestError(f"{name} is {_shown(value)}; {low} to {high} may be.", name)


def _require_number(name: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise RequestError(f"{name} is not a finite number.", name)
    if not low <= value <= high or (value == 0 and name in _ABOVE_ZERO):  # type: ignore[operator]
        raise RequestError(f"{name} is {_shown(value)}, which is out of range.", name)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:24]
