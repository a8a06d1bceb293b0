"""Sampling parameters that are taken or refused: every range has its edge, its number and its limit."""

import math
from typing import Any

import pytest

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.sampling_checks import SamplingLimits, check_sampling_params
from vllm_obs.engine.sampling_params import SamplingParams

LIMITS = SamplingLimits(max_model_len=2048, vocab_size=49152)


def refusal(**values: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_sampling_params(SamplingParams(**values), LIMITS)
    return caught.value


GOOD: list[dict[str, Any]] = [
    {},
    {"n": 1024},
    {"temperature": 0},
    {"temperature": 2},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"top_k": -1},
    {"top_k": 0},
    {"min_p": 1},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"repetition_penalty": 50.0},
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"max_tokens": None},
    {"max_tokens": 0},
    {"max_tokens": 2048},
    {"max_tokens": 4, "min_tokens": 4},
    {"logprobs": 20, "prompt_logprobs": 0},
    {"stop": "x"},
    {"stop": ["x"] * 64},
    {"stop": None, "stop_token_ids": None, "bad_words": None},
    {"logit_bias": {49151: -100}},
    {"allowed_token_ids": list(range(49152))},
    {"truncate_prompt_tokens": -1},
    {"n": 2, "temperature": 0},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_a_value_at_its_edge_is_taken(values: dict[str, Any]) -> None:
    check_sampling_params(SamplingParams(**values), LIMITS)


BAD: list[tuple[str, Any]] = [
    *(("n", value) for value in (0, -1, 16385, 10**9, 10**400, 10**5000, True, "3", 3.5, None)),
    *(("temperature", value) for value in (math.nan, math.inf, -1, 2.1, "hot", True, None, 10**400)),
    *(("top_p", value) for value in (0, 2, -0.1, math.nan, "x")),
    *(("top_k", value) for value in (-2, 2**31, 1.0, True)),
    *(("min_p", value) for value in (-0.1, 1.5, math.nan)),
    *(("presence_penalty", value) for value in (math.nan, 3, -2.1)),
    *(("frequency_penalty", value) for value in (math.nan, 3, -2.1)),
    *(("repetition_penalty", value) for value in (0, -1, math.nan, math.inf)),
    *(("seed", value) for value in (2**63, -(2**63) - 1, 2**70, 1.5, "1", True)),
    *(("max_tokens", value) for value in (-1, 2049, 2**31, 2**63, "8", True)),
    *(("min_tokens", value) for value in (-1, 17, 2**31, None)),
    *(("logprobs", value) for value in (-1, 21, 10**6, True)),
    *(("prompt_logprobs", value) for value in (-1, 21)),
    *(("stop", value) for value in ([""], ["x" * 1025], ["x"] * 65, "x" * 10_000_000, [1], 7)),
    *(("bad_words", value) for value in ([""], ["x" * 257], ["x"] * 1025, "word")),
    *(("stop_token_ids", value) for value in ([-1], [49152], [2**64], [1.0], [True], list(range(1025)), 3)),
    *(("allowed_token_ids", value) for value in ([], [49152], [-1], ["2"])),
    *(("logit_bias", value) for value in ({49152: 5}, {-1: 5}, {1: math.nan}, {1: "x"}, {"1": 1}, [1])),
    *(("logit_bias", value) for value in (dict.fromkeys(range(1025), 1),)),
    *(("truncate_prompt_tokens", value) for value in (0, -2, 2049)),
]


@pytest.mark.parametrize(
    ("name", "value"), BAD, ids=lambda value: repr(value)[:30] if value != 10**5000 else "5000"
)
def test_a_bad_value_names_its_field_in_a_short_message(name: str, value: Any) -> None:
    error = refusal(**{name: value})
    assert error.param == name
    assert 10 < len(str(error)) < 300


def test_a_message_has_the_number_and_the_limit() -> None:
    assert str(refusal(temperature=3)) == "temperature must be in [0, 2], got 3.0."
    assert str(refusal(stop=["a"] * 65)) == "stop may hold at most 64 strings, got 65."
    assert "49152" in str(refusal(stop_token_ids=[49152]))
    assert "49151" in str(refusal(stop_token_ids=[49152]))


def test_more_sequences_than_we_run_have_their_own_reason() -> None:
    assert refusal(n=1025).reason == "too_many_sequences"
    assert refusal(n=16385).reason == "invalid_value"


def test_stop_strings_without_text_are_refused() -> None:
    assert refusal(stop="x", detokenize=False).param == "stop"


def test_offline_max_tokens_may_be_more_than_the_context() -> None:
    check_sampling_params(SamplingParams(max_tokens=10**6), SamplingLimits(2048, 49152, cap_max_tokens=True))
