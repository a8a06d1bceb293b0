"""What the engine core refuses, each with an error row, while it serves on."""

from typing import Any

import numpy as np
import pytest
from core_bench import Bench
from fake_executor import VOCAB_SIZE, expected_output, make_request

from vllm_obs.engine.messages import (
    EngineCoreRequest,
    FinishReason,
    SamplingSpec,
)
from vllm_obs.telemetry.records import (
    RequestTaken,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


BAD_PROMPTS: dict[str, tuple[Any, str]] = {
    "no tokens": ([], "empty_prompt"),
    "negative": ([-1, 2], "invalid_value"),
    "beyond the vocabulary": ([VOCAB_SIZE], "invalid_value"),
    "as long as the context": ([1] * 64, "context_length_exceeded"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_bad_prompt_is_answered_with_an_error_row(bench: Bench, name: str) -> None:
    prompt, reason = BAD_PROMPTS[name]
    bench.add("bad", prompt)
    assert bench.core.has_work()
    seen = bench.run()["bad"]
    assert (seen.finish_reason, seen.error is not None and seen.error[0]) == (FinishReason.ERROR, reason)
    assert bench.core.counters.num_rejected_adds == 1
    assert bench.recorder.of(RequestTaken) == []


def test_a_prompt_that_the_cache_cannot_hold_is_refused_with_the_numbers() -> None:
    bench = Bench(num_blocks=3)
    bench.add("bad", [1] * 13)
    assert bench.run()["bad"].error == (
        "context_length_exceeded",
        "The prompt has 13 tokens; at most 12 fit in the context of 64 tokens and the KV cache of 12.",
    )


BAD_SAMPLING: list[dict[str, Any]] = [
    {"temperature": float("nan")},
    {"temperature": -0.1},
    {"temperature": "hot"},
    {"top_p": 0.0},
    {"top_p": 1.5},
    {"top_k": -1},
    {"min_p": 2.0},
    {"seed": 2**70},
    {"seed": True},
    {"repetition_penalty": 0.0},
    {"presence_penalty": float("inf")},
    {"max_tokens": -1},
    {"max_tokens": 2**31},
    {"min_tokens": -1},
    {"stop_token_ids": (VOCAB_SIZE,)},
    {"stop_token_ids": (1,) * 5000},
    {"eos_token_ids": (-2,)},
    {"allowed_token_ids": (VOCAB_SIZE,)},
    {"logit_bias": ((VOCAB_SIZE, 1.0),)},
    {"logit_bias": ((1, float("nan")),)},
    {"bad_words_ids": ((1, VOCAB_SIZE),)},
    {"bad_words_ids": ((1,),) * 5000},
    {"bad_words_ids": ((1,) * 1000,) * 66},
    {"allowed_token_ids": (1, True)},
    {"allowed_token_ids": (1, 2**70)},
    {"logprobs": 21},
    {"prompt_logprobs": -1},
    {"stop_token_ids": None},
]


@pytest.mark.parametrize("fields", BAD_SAMPLING, ids=lambda fields: f"{next(iter(fields))}")
def test_bad_sampling_is_answered_with_an_error_row_and_the_engine_serves_on(
    bench: Bench, fields: dict[str, Any]
) -> None:
    bench.add("bad", [1, 2], sampling=SamplingSpec()._replace(**fields))
    bench.add("good", [1, 2], max_tokens=2)
    seen = bench.run()
    assert seen["bad"].finish_reason == FinishReason.ERROR
    assert seen["bad"].error is not None
    assert seen["good"].token_ids == expected_output([1, 2], 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 2**31},
        {"submitted_at": -1},
        {"submitted_at": 2**63},
        {"cache_salt": ""},
        {"cache_salt": "x" * 5000},
        {"prompt_token_ids": np.array([[1, 2]], dtype=np.int32)},
        {"prompt_token_ids": np.array([1.0, 2.0])},
    ],
    ids=["priority", "early", "late", "empty salt", "long salt", "matrix", "floats"],
)
def test_other_bad_fields_are_answered_with_an_error_row(bench: Bench, fields: dict[str, Any]) -> None:
    bench.add("bad", [1, 2], **fields)
    assert bench.run()["bad"].error is not None


def test_a_message_of_wrong_types_is_answered_too(bench: Bench) -> None:
    request = make_request("bad", [1, 2])
    bench.core.add_request(EngineCoreRequest(*request[:3], None, *request[4:]))  # type: ignore[arg-type]
    assert bench.run()["bad"].error == ("internal_error", "The request could not be taken.")
