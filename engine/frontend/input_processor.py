"""What a client asks for becomes sequences the core can take, or a RequestError."""

import time
import uuid
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import RequestError, RequestFailedError, shown
from vllm_obs.engine.faults import any_planted, maybe_fault
from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.messages import EngineCoreRequest, EngineFacts, SamplingSpec
from vllm_obs.engine.sampling_checks import NO_GENERATION, SamplingLimits, check_sampling_params, check_token_ids
from vllm_obs.engine.sampling_params import SamplingParams, to_spec

if TYPE_CHECKING:
    from vllm_obs.engine.frontend.grammar_check import GrammarCheck

Prompt = str | list[int]

LONG_TEXT_CHARS = 2000
"""From here on tokenising takes long enough to be kept off an event loop."""

MAX_LABEL_CHARS = 128
_TRUNCATED_TEXT_FACTOR = 4
"""How many times the longest possible prompt a text may be when only its end is kept."""


class PreparedPrompt(NamedTuple):
    """A checked prompt and its sampling (for sequence 0). `max_tokens` is the resolved limit, 0 for scoring."""

    token_ids: list[int]
    sampling: SamplingSpec
    max_tokens: int


class InputProcessor:
    """Checks and tokenises prompts. `prepare` and `encode` are pure and may run in any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: SamplingLimits,
        num_cache_tokens: int | None = None,
        grammar_check: "GrammarCheck | None" = None,
    ) -> None:
        """`grammar_check` is made when the first grammar comes if it is not given."""
        self.tokenizer = tokenizer
        self.limits = limits
        self._num_cache_tokens = num_cache_tokens or limits.max_model_len
        self._grammar_check = grammar_check
        self._grammar_lock = Lock()
        self._max_text_chars = limits.max_model_len * tokenizer.max_chars_per_token

    def prepare(self, prompt: Prompt, params: SamplingParams, arrival: Arrival) -> PreparedPrompt:
        """Raise RequestError for what can never succeed, RequestFailedError when tokenising breaks."""
        check_sampling_params(params, self.limits)
        arrival.check()
        token_ids = self._truncate(self._token_ids(prompt, params, arrival.external_id), params)
        self._check_length(token_ids, params)
        max_tokens = self._max_tokens(len(token_ids), params)
        self._check_products(len(token_ids), max_tokens, params)
        sampling = to_spec(params, max_tokens, self.tokenizer.eos_token_ids)
        sampling = sampling._replace(bad_words_ids=self._bad_words(params), grammar=self._grammar(params))
        self._check_constraints(sampling, params.n, arrival.num_prompts)
        return PreparedPrompt(token_ids, sampling, max_tokens)

    @property
    def grammar_check(self) -> "GrammarCheck":
        """What tells grammars that compile from others."""
        with self._grammar_lock:
            if self._grammar_check is None:
                # Imported here: only who has a grammar needs a compiler.
                from vllm_obs.engine.frontend.grammar_check import GrammarCheck

                self._grammar_check = GrammarCheck(self.tokenizer, self.limits.vocab_size)
            return self._grammar_check

    def is_long(self, prompt: Prompt, params: SamplingParams) -> bool:
        """Whether `prepare` may take longer than an event loop should wait."""
        words = tuple(params.bad_words or ())
        return (
            params.structured_outputs is not None
            or len(words) > 32
            or len(prompt) > (LONG_TEXT_CHARS if isinstance(prompt, str) else 16 * LONG_TEXT_CHARS)
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text that may fit the context. RequestError when it is surely too long."""
        self.check_num_chars(len(text))
        return self.tokenizer.encode(text, add_special_tokens)

    def check_num_chars(self, num_chars: int, factor: int = 1) -> None:
        """Raise RequestError for a text so long that its tokens cannot fit, without tokenising it."""
        if num_chars > factor * self._max_text_chars:
            raise RequestError(
                f"The prompt has {num_chars} characters; this model's maximum context length is "
                f"{self.limits.max_model_len} tokens, at most {self._max_text_chars} characters.",
                "prompt",
                reason="context_length_exceeded",
            )

    def check_generates(self) -> None:
        """Raise RequestError where the model makes no text."""
        if not self.limits.generates:
            raise RequestError(NO_GENERATION, "model", reason="unsupported")

    def _token_ids(self, prompt: Prompt, params: SamplingParams, label: str) -> list[int]:
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("The prompt is empty.", "prompt", reason="empty_prompt")
            if params.pooling and params.truncate_prompt_tokens is not None:
                prompt = prompt[: _TRUNCATED_TEXT_FACTOR * self._max_text_chars]  # its beginning is what counts
            self.check_num_chars(
                len(prompt), 1 if params.truncate_prompt_tokens is None else _TRUNCATED_TEXT_FACTOR
            )
            return self._tokenize(prompt, label)
        if not isinstance(prompt, list):
            raise RequestError(f"The prompt must be text or token ids, got {shown(prompt)}.", "prompt")
        if params.truncate_prompt_tokens is None and len(prompt) > self.limits.max_model_len:
            raise self._too_long(len(prompt), params)
        check_token_ids(prompt, self.limits.vocab_size, "prompt")
        return prompt

    def _tokenize(self, text: str, label: str) -> list[int]:
        try:
            maybe_fault("tokenizer", label)
            return self.tokenizer.encode(text)
        except RequestError:
            raise
        except Exception as error:
            raise RequestFailedError("The prompt could not be tokenised.", "internal_error") from error

    def _truncate(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        kept = params.truncate_prompt_tokens
        if kept is None:
            return token_ids
        if params.pooling:
            return self._beginning(token_ids, kept if kept > 0 else self.limits.max_model_len)
        return token_ids[-(kept if kept > 0 else max(1, self.limits.max_model_len - (params.max_tokens or 1))) :]

    def _beginning(self, token_ids: list[int], num_kept: int) -> list[int]:
        """The first tokens; the special one that ends the whole prompt ends what is kept of it too."""
        if len(token_ids) <= num_kept or not self.tokenizer.is_special(token_ids[-1]):
            return token_ids[:num_kept]
        return [*token_ids[: num_kept - 1], token_ids[-1]]

    def _check_length(self, token_ids: list[int], params: SamplingParams) -> None:
        if not token_ids:
            raise RequestError("The prompt has no tokens.", "prompt", reason="empty_prompt")
        longest = self.limits.max_model_len - (params.pooling is None)  # a vector takes no place, a token does
        if len(token_ids) > longest:
            raise self._too_long(len(token_ids), params)
        if len(token_ids) > self._num_cache_tokens:
            raise RequestError(
                f"The prompt has {len(token_ids)} tokens; the KV cache holds {self._num_cache_tokens}.",
                "prompt",
                reason="context_length_exceeded",
            )

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        room = self.limits.max_model_len - num_prompt_tokens
        if params.max_tokens is not None and params.max_tokens > room and not self.limits.cap_max_tokens:
            raise self._too_long(num_prompt_tokens, params)
        room = min(room, self.limits.max_new_tokens or room)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens={params.min_tokens}: only {max_tokens} can follow {num_prompt_tokens} prompt tokens.",
                "min_tokens",
            )
        return max_tokens

    def _too_long(self, num_prompt_tokens: int, params: SamplingParams) -> RequestError:
        if params.pooling:
            return RequestError(
                f"This model's maximum context length is {self.limits.max_model_len} tokens; the prompt has "
                f"{num_prompt_tokens}.",
                "prompt",
                reason="context_length_exceeded",
            )
        wanted = max(params.max_tokens or 1, 1)
        return RequestError(
            f"This model's maximum context length is {self.limits.max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens} and {wanted} were asked for, {num_prompt_tokens + wanted} in all.",
            "prompt" if num_prompt_tokens >= self.limits.max_model_len else "max_tokens",
            reason="context_length_exceeded",
        )

    def _check_products(self, num_prompt_tokens: int, max_tokens: int, params: SamplingParams) -> None:
        total = params.n * max_tokens
        if total > self.limits.max_total_tokens:
            raise RequestError(
                f"n={params.n} sequences of up to {max_tokens} tokens are {total}; at most "
                f"{self.limits.max_total_tokens} may be asked for.",
                "n",
                reason="too_many_sequences",
            )
        for name, wanted, rows, most in (
            ("logprobs", params.logprobs, total, self.limits.max_total_tokens),
            ("prompt_logprobs", params.prompt_logprobs, num_prompt_tokens, self.limits.max_prompt_logprob_entries),
        ):
            if wanted is not None and rows * (wanted + 1) > most:
                raise RequestError(
                    f"{name}={wanted} for {rows} tokens are {rows * (wanted + 1)} numbers; at most {most} may be.",
                    name,
                )

    def _grammar(self, params: SamplingParams) -> str:
        if params.structured_outputs is None or params.max_tokens == 0:
            return ""
        return self.grammar_check.grammar_of(params.structured_outputs)

    def _check_constraints(self, sampling: SamplingSpec, n: int, num_prompts: int) -> None:
        """Every sequence carries its own copy of these lists to the core."""
        num_bad = sum(map(len, sampling.bad_words_ids))
        if num_bad > (most := self.limits.max_bad_words_tokens):
            raise RequestError(f"bad_words has {num_bad} tokens in all; at most {most} may be.", "bad_words")
        each = len(sampling.allowed_token_ids) + len(sampling.logit_bias) + num_bad
        num_chars, most = num_prompts * n * len(sampling.grammar), self.limits.max_grammar_chars
        if num_chars > most:
            raise RequestError(
                f"{num_prompts * n} sequences with a grammar of {len(sampling.grammar)} characters have "
                f"{num_chars}; at most {most} may be.",
                "n" if n > 1 else "prompt",
                reason="too_many_sequences",
            )
        total, most = num_prompts * n * each, self.limits.max_constraint_tokens
        if total > most:
            raise RequestError(
                f"{num_prompts * n} sequences with {each} token ids in allowed_token_ids, logit_bias and "
                f"bad_words have {total}; at most {most} may be.",
                "n" if n > 1 else "prompt",
                reason="too_many_sequences",
            )

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Each word as it is tokenised at the start of a text and after a blank."""
        texts = [text for word in params.bad_words or () for text in (word.lstrip(), " " + word.lstrip())]
        words = (tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        return tuple(dict.fromkeys(word for word in words if word))


def make_limits(
    config: VllmConfig, tokenizer: Tokenizer, facts: EngineFacts | None, cap_max_tokens: bool = False
) -> SamplingLimits:
    """What requests may ask of this model, by the configuration and what the engine found."""
    lengths = [config.model.max_model_len, *([facts.max_model_len] if facts is not None else [])]
    return SamplingLimits(
        max_model_len=min(lengths),
        vocab_size=min(tokenizer.vocab_size, config.model.architecture.vocab_size),
        max_logprobs=config.model.max_logprobs,
        max_new_tokens=config.model.generation.max_new_tokens,
        cap_max_tokens=cap_max_tokens,
        generates=not config.model.architecture.is_encoder,
        pools=not config.model.is_synthetic,
    )


def make_sequences(
    prepared: PreparedPrompt,
    params: SamplingParams,
    arrival: Arrival,
    draw_seed: Callable[[], int],
    client_index: int = 0,
) -> list[EngineCoreRequest]:
    """The n sequences of a request, under ids of our own that share what is before the last dash.

    A request without a seed gets one drawn; its sequences differ by their index alone. They are submitted now.
    """
    label = f"{arrival.external_id[:MAX_LABEL_CHARS]}-" if any_planted() else ""
    request_id = f"{label}{uuid.uuid4().hex}"
    seed = draw_seed() if params.seed is None else params.seed
    submitted_at = time.monotonic_ns()
    prompt_token_ids = np.asarray(prepared.token_ids, np.int32)
    return [
        EngineCoreRequest(
            request_id=f"{request_id}-{index}",
            client_index=client_index,
            generation=0,
            prompt_token_ids=prompt_token_ids,
            sampling=prepared.sampling._replace(seed=seed, sequence_index=index),
            priority=arrival.priority,
            cache_salt=arrival.cache_salt,
            submitted_at=submitted_at,
        )
        for index in range(params.n)
    ]
