"""Prompts become sequences; what cannot succeed is refused with the numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from default_model import default_config, default_tokenizer
from scripted_client import FACTS

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.input_processor import InputProcessor, PreparedPrompt, make_limits, make_sequences
from vllm_obs.engine.sampling_params import SamplingParams

CONTEXT = 2048


@pytest.fixture
def inputs() -> InputProcessor:
    return InputProcessor(default_tokenizer(), make_limits(default_config(), default_tokenizer(), FACTS))


def prepare(inputs: InputProcessor, prompt: Any, arrival: Arrival | None = None, **params: Any) -> PreparedPrompt:
    return inputs.prepare(prompt, SamplingParams(**params), arrival or Arrival())


def refusal(inputs: InputProcessor, prompt: Any, arrival: Arrival | None = None, **params: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        prepare(inputs, prompt, arrival, **params)
    assert len(str(caught.value)) < 400
    return caught.value


def test_text_is_tokenised_and_ids_are_taken_as_they_are(inputs: InputProcessor) -> None:
    assert prepare(inputs, "The capital of France is").token_ids == [504, 3575, 282, 4649, 314]
    assert prepare(inputs, [0]).token_ids == [0]


@pytest.mark.parametrize("prompt", ["", [], "\x06"])
def test_an_empty_prompt_is_refused(inputs: InputProcessor, prompt: Any) -> None:
    error = refusal(inputs, prompt)
    assert (error.reason, error.param) == ("empty_prompt", "prompt")


@pytest.mark.parametrize("bad", [-1, 49152, 2**31, 2**64, 1.5, True, "x", None, [1]])
def test_bad_ids_in_a_prompt_are_refused(inputs: InputProcessor, bad: Any) -> None:
    assert refusal(inputs, [504, bad, 3]).param == "prompt"


@pytest.mark.parametrize("prompt", [None, 5, {"a": 1}, b"x"])
def test_a_prompt_of_another_type_is_refused(inputs: InputProcessor, prompt: Any) -> None:
    assert refusal(inputs, prompt).param == "prompt"


def test_the_context_holds_the_prompt_and_one_token(inputs: InputProcessor) -> None:
    assert prepare(inputs, [504] * (CONTEXT - 1), max_tokens=1).max_tokens == 1
    for num_tokens in (CONTEXT, CONTEXT + 1, 10**6):
        error = refusal(inputs, [504] * num_tokens, max_tokens=1)
        assert (error.reason, error.param) == ("context_length_exceeded", "prompt")
        assert str(CONTEXT) in str(error)
        assert str(num_tokens) in str(error)


def test_max_tokens_must_fit_behind_the_prompt(inputs: InputProcessor) -> None:
    assert prepare(inputs, [504] * 48, max_tokens=2000).max_tokens == 2000
    error = refusal(inputs, [504] * 49, max_tokens=2000)
    assert (error.reason, error.param) == ("context_length_exceeded", "max_tokens")


def test_offline_max_tokens_is_cut_to_what_fits() -> None:
    limits = make_limits(default_config(), default_tokenizer(), FACTS, cap_max_tokens=True)
    prepared = prepare(InputProcessor(default_tokenizer(), limits), [504] * 48, max_tokens=10**6)
    assert prepared.max_tokens == prepared.sampling.max_tokens == 2000


def test_without_max_tokens_it_is_what_fits(inputs: InputProcessor) -> None:
    assert prepare(inputs, [504] * 48, max_tokens=None).sampling.max_tokens == 2000
    error = refusal(inputs, [504] * 48, max_tokens=None, min_tokens=2001)
    assert error.param == "min_tokens"


def test_scoring_a_prompt_resolves_to_no_tokens(inputs: InputProcessor) -> None:
    prepared = prepare(inputs, "Your answer: Yes", max_tokens=0, prompt_logprobs=1)
    assert (prepared.max_tokens, prepared.sampling.max_tokens, prepared.sampling.prompt_logprobs) == (0, 0, 1)


def test_a_prompt_that_the_cache_cannot_hold_is_refused(inputs: InputProcessor) -> None:
    inputs = InputProcessor(inputs.tokenizer, inputs.limits, num_cache_tokens=1600)
    assert prepare(inputs, [504] * 1600, max_tokens=1).max_tokens == 1
    error = refusal(inputs, [504] * 1601, max_tokens=1)
    assert error.reason == "context_length_exceeded"
    assert "1600" in str(error)


def test_a_million_characters_are_refused_before_tokenising(
    inputs: InputProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs.tokenizer, "encode", lambda *_: pytest.fail("tokenised"))
    for text in ("a" * 1_000_000, "word " * 200_000, "👨‍👩‍👧‍👦" * 150_000):
        assert refusal(inputs, text).reason == "context_length_exceeded"


@pytest.mark.parametrize(
    ("kept", "expected"), [(5, [1035, 1036, 1037, 1038, 1039]), (100, list(range(1000, 1040)))]
)
def test_truncation_keeps_the_end(inputs: InputProcessor, kept: int, expected: list[int]) -> None:
    assert prepare(inputs, list(range(1000, 1040)), truncate_prompt_tokens=kept).token_ids == expected


def test_truncation_makes_a_long_prompt_fit(inputs: InputProcessor) -> None:
    assert len(prepare(inputs, [504] * (CONTEXT + 50), truncate_prompt_tokens=7).token_ids) == 7
    assert len(prepare(inputs, [504] * 5000, truncate_prompt_tokens=-1, max_tokens=48).token_ids) == 2000


def test_logprobs_of_many_tokens_have_a_limit(inputs: InputProcessor) -> None:
    error = refusal(inputs, "hi", n=1024, max_tokens=2000, logprobs=20)
    assert error.param == "logprobs"
    assert "4194304" in str(error)


def test_prompt_logprobs_of_a_long_prompt_are_bounded() -> None:
    limits = make_limits(default_config(), default_tokenizer(), None)
    small = InputProcessor(default_tokenizer(), replace(limits, max_prompt_logprob_entries=100))
    assert prepare(small, [504] * 50, prompt_logprobs=1)
    error = refusal(small, [504] * 51, prompt_logprobs=1)
    assert error.param == "prompt_logprobs"
    assert "100" in str(error)


def test_too_many_tokens_in_all_are_too_many_sequences() -> None:
    limits = make_limits(default_config(), default_tokenizer(), None)
    small = InputProcessor(default_tokenizer(), replace(limits, max_total_tokens=100))
    assert prepare(small, "hi", n=10, max_tokens=10)
    error = refusal(small, "hi", n=11, max_tokens=10)
    assert (error.param, error.reason) == ("n", "too_many_sequences")


@pytest.mark.parametrize("priority", [10**9, -(10**9), 1.5, True])
def test_priority_is_bounded(inputs: InputProcessor, priority: Any) -> None:
    assert refusal(inputs, "hi", Arrival(priority=priority)).param == "priority"


@pytest.mark.parametrize("salt", ["", "x" * 1025, "a\nb", 5])
def test_a_cache_salt_is_short_and_printable(inputs: InputProcessor, salt: Any) -> None:
    assert refusal(inputs, "hi", Arrival(cache_salt=salt)).param == "cache_salt"


def test_bad_words_are_taken_at_the_start_and_after_a_blank(inputs: InputProcessor) -> None:
    words = prepare(inputs, "hi", bad_words=["Paris"]).sampling.bad_words_ids
    assert set(words) == {tuple(inputs.tokenizer.encode("Paris")), (7042,)}


def test_the_token_ids_that_sequences_carry_are_bounded(inputs: InputProcessor) -> None:
    allowed = list(range(32_760))
    fields: dict[str, Any] = {"allowed_token_ids": allowed, "logit_bias": {5: 1.0, 6: 1.0}, "bad_words": ["the"]}
    num_each = 32_762 + sum(map(len, prepare(inputs, "x", **fields).sampling.bad_words_ids))
    prepare(inputs, "x", n=31, **fields)
    for n, num_prompts, param in ((40, 1, "n"), (1, 40, "prompt"), (2, 20, "n")):
        error = refusal(inputs, "x", Arrival(num_prompts=num_prompts), n=n, **fields)
        assert (error.reason, error.param) == ("too_many_sequences", param)
        assert str(40 * num_each) in str(error)
        assert "1048576" in str(error)


def test_the_tokens_of_all_bad_words_are_bounded(inputs: InputProcessor) -> None:
    error = refusal(inputs, "x", bad_words=[chr(0x4E00 + n) * 100 for n in range(500)])
    assert (error.reason, error.param) == ("invalid_value", "bad_words")
    assert "65536" in str(error)


def test_a_failing_tokenizer_is_no_fault_of_the_request(
    inputs: InputProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_obs.engine.faults._FAULTS", {"tokenizer": ("raise", "poison")})
    with pytest.raises(RequestFailedError) as caught:
        prepare(inputs, "hi", Arrival(external_id="a poison pill"))
    assert caught.value.reason == "internal_error"
    assert prepare(inputs, "hi", Arrival(external_id="fine")).token_ids == [6004]


def test_children_share_prompt_and_seed_and_differ_by_index(inputs: InputProcessor) -> None:
    params = SamplingParams(n=3)
    prepared = inputs.prepare("hi", params, Arrival(priority=4, cache_salt="s"))
    children = make_sequences(prepared, params, Arrival(priority=4, cache_salt="s"), lambda: 77)
    assert [child.sampling.sequence_index for child in children] == [0, 1, 2]
    assert {child.sampling.seed for child in children} == {77}
    assert {(child.priority, child.cache_salt) for child in children} == {(4, "s")}
    heads = {child.request_id.rpartition("-")[0] for child in children}
    assert len(heads) == 1
    assert len(heads.pop()) == 32
    assert all(child.prompt_token_ids.dtype == np.int32 for child in children)
    assert children[0].submitted_at > 0


def test_a_given_seed_is_kept_and_ids_are_never_the_clients(inputs: InputProcessor) -> None:
    params = SamplingParams(seed=-5)
    arrival = Arrival(external_id="mine")
    prepared = inputs.prepare("hi", params, arrival)
    first, second = (make_sequences(prepared, params, arrival, lambda: 0)[0] for _ in range(2))
    assert first.sampling.seed == -5
    assert first.request_id != second.request_id
    assert "mine" not in first.request_id
