"""Whether a request may have its tokens sampled as it wants: the limits, and the one function that says so."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_obs.engine.errors import RequestError, shown
from vllm_obs.engine.pooling.kinds import POOLING_KINDS
from vllm_obs.engine.sampling_params import SamplingParams

MAX_N = 16_384
INT64_MAX = 2**63 - 1
NO_GENERATION = "This model does not generate text; it makes embeddings, scores and rankings."
NO_POOLING = "This model does not make embeddings."


@dataclass(frozen=True)
class SamplingLimits:
    """What a request may ask for at most.

    `vocab_size` is the number of ids a request may name: those both the tokenizer and the logits have.
    `max_total_tokens` bounds n times max_tokens, and that times the log-probabilities of each;
    `max_constraint_tokens` the token ids that the sequences' allowed_token_ids, logit_bias and bad_words hold.
    No request gets more than `max_new_tokens`. `cap_max_tokens` cuts max_tokens to what fits (offline) where a
    server refuses the request. `generates` and `pools` say whether the model makes tokens, and whether it makes
    vectors of prompts.
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    max_new_tokens: int | None = None
    max_sequences: int = 1024
    max_stop_strings: int = 64
    max_stop_chars: int = 1024
    max_list_items: int = 1024
    max_bad_word_chars: int = 256
    max_bad_words_tokens: int = 65_536
    max_total_tokens: int = 4_194_304
    max_constraint_tokens: int = 1_048_576
    max_prompt_logprob_entries: int = 131_072
    max_grammar_chars: int = 33_554_432
    cap_max_tokens: bool = False
    generates: bool = True
    pools: bool = True


def check_sampling_params(params: SamplingParams, limits: SamplingLimits) -> None:
    """Raise RequestError, naming the field, the value and the limit, unless the engine can do what is asked."""
    _check_task(params, limits)
    _check_n(params.n, limits)
    for name, low, high in (
        ("temperature", 0.0, 2.0),
        ("min_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    ):
        value = _number(name, getattr(params, name))
        if not low <= value <= high:
            raise RequestError(f"{name} must be in [{low:g}, {high:g}], got {shown(value)}.", name)
    if not 0.0 < _number("top_p", params.top_p) <= 1.0:
        raise RequestError(f"top_p must be in (0, 1], got {shown(params.top_p)}.", "top_p")
    if _number("repetition_penalty", params.repetition_penalty) <= 0.0:
        raise RequestError(
            f"repetition_penalty must be greater than 0, got {shown(params.repetition_penalty)}.",
            "repetition_penalty",
        )
    _integer("top_k", params.top_k, -1, 2**31 - 1)
    if params.seed is not None:
        _integer("seed", params.seed, -INT64_MAX - 1, INT64_MAX)
    _check_lengths(params, limits)
    _check_logprobs(params, limits)
    _check_texts(params, limits)
    _check_token_ids(params, limits)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {shown(value)}.", name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{name} must be a finite number, got {shown(value)}.", name)
    return number


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {shown(value)}.", name)
    if value < low:
        raise RequestError(f"{name} must be at least {low}, got {shown(value)}.", name)
    if value > high:
        raise RequestError(f"{name} must be at most {high}, got {shown(value)}.", name)
    return value


def _check_task(params: SamplingParams, limits: SamplingLimits) -> None:
    if params.pooling is None:
        if not limits.generates:
            raise RequestError(NO_GENERATION, "model", reason="unsupported")
        return
    if not limits.pools:
        raise RequestError(NO_POOLING, "model", reason="unsupported")
    if params.pooling not in POOLING_KINDS or params.max_tokens != 0 or params.n != 1:
        kinds = ", ".join(POOLING_KINDS)
        raise RequestError(f"pooling must be one of {kinds}, with n=1 and max_tokens=0.", "pooling")


def _check_n(n: object, limits: SamplingLimits) -> None:
    number = _integer("n", n, 1, MAX_N)
    if number > limits.max_sequences:
        raise RequestError(
            f"n must be at most {limits.max_sequences} here, got {number}.", "n", reason="too_many_sequences"
        )


def _check_lengths(params: SamplingParams, limits: SamplingLimits) -> None:
    longest = INT64_MAX if limits.cap_max_tokens else limits.max_model_len
    if params.max_tokens is not None:
        _integer("max_tokens", params.max_tokens, 0, longest)
    _integer("min_tokens", params.min_tokens, 0, limits.max_model_len)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens must be at most max_tokens={params.max_tokens}, got {params.min_tokens}.", "min_tokens"
        )
    if params.truncate_prompt_tokens is not None:
        kept = _integer("truncate_prompt_tokens", params.truncate_prompt_tokens, -1, limits.max_model_len)
        if kept == 0:
            raise RequestError("truncate_prompt_tokens must be -1 or at least 1, got 0.", "truncate_prompt_tokens")


def _check_logprobs(params: SamplingParams, limits: SamplingLimits) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None:
            _integer(name, value, 0, limits.max_logprobs)


def _check_texts(params: SamplingParams, limits: SamplingLimits) -> None:
    _check_strings("stop", params.stop_strings, limits.max_stop_strings, limits.max_stop_chars)
    _check_strings("bad_words", tuple(params.bad_words or ()), limits.max_list_items, limits.max_bad_word_chars)
    if params.stop_strings and not params.detokenize:
        raise RequestError("stop strings need detokenize to be true.", "stop")


def _check_strings(name: str, texts: tuple[str, ...], max_items: int, max_chars: int) -> None:
    if len(texts) > max_items:
        raise RequestError(f"{name} may hold at most {max_items} strings, got {len(texts)}.", name)
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(f"{name} must hold strings, got {shown(text)}.", name)
        if not text:
            raise RequestError(f"{name} cannot hold an empty string.", name)
        if len(text) > max_chars:
            raise RequestError(
                f"A string of {name} may have at most {max_chars} characters, got {len(text)}.", name
            )


def _check_token_ids(params: SamplingParams, limits: SamplingLimits) -> None:
    _check_ids("stop_token_ids", tuple(params.stop_token_ids or ()), limits.max_list_items, limits)
    if params.allowed_token_ids is not None:
        allowed = tuple(params.allowed_token_ids)
        if not allowed:
            raise RequestError("allowed_token_ids cannot be empty.", "allowed_token_ids")
        _check_ids("allowed_token_ids", allowed, limits.vocab_size, limits)
    if params.logit_bias is not None:
        if not isinstance(params.logit_bias, Mapping):
            raise RequestError("logit_bias must map token ids to numbers.", "logit_bias")
        _check_ids("logit_bias", tuple(params.logit_bias), limits.max_list_items, limits)
        for value in params.logit_bias.values():
            _number("logit_bias", value)


def _check_ids(name: str, ids: tuple[int, ...], max_items: int, limits: SamplingLimits) -> None:
    if len(ids) > max_items:
        raise RequestError(f"{name} may hold at most {max_items} entries, got {len(ids)}.", name)
    check_token_ids(ids, limits.vocab_size, name)


def check_token_ids(ids: Iterable[int], vocab_size: int, param: str) -> None:
    """Raise RequestError unless each is an integer id in [0, vocab_size)."""
    for token_id in ids:
        if type(token_id) is not int:
            raise RequestError(f"{param} must hold integer token ids, got {shown(token_id)}.", param)
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{param} holds the token id {shown(token_id)}; the vocabulary's ids are 0 to {vocab_size - 1}.",
                param,
            )
