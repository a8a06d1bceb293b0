"""What a reply says of its own timing."""

import asyncio
import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import served

from vllm_obs.engine.frontend.outputs import SequenceDelta, SequenceTiming
from vllm_obs.engine.messages import Detours
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.reply_metrics import Arrived, ReplyMetrics, stage_ns
from vllm_obs.telemetry.stages import STAGES

MS = 1_000_000
FIELDS = [
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
    "stages",
]
ARRIVED = Arrived(1 * MS, 2 * MS, 4 * MS)
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def fields_of(
    timing: SequenceTiming | None, num_tokens: int, num_choices: int = 1, is_enabled: bool = True
) -> Any:
    metrics = ReplyMetrics(is_enabled, num_choices, ARRIVED, clock=lambda: 600 * MS)
    metrics.add(SequenceDelta("a-0", 0, num_output_tokens=1))
    metrics.add(SequenceDelta("a-0", 0, num_output_tokens=num_tokens, timing=timing))
    return metrics.fields()


def test_the_parts_of_a_reply() -> None:
    moments = {"tokenized_at": 7 * MS, "returned_at": 540 * MS, "ended_at": 555 * MS}
    detours = Detours(preempted_ns=80 * MS, recompute_ns=50 * MS, stalled_ns=30 * MS, early_ns=20 * MS)
    timing = SequenceTiming(10 * MS, 30 * MS, 130 * MS, 530 * MS, **moments, detours=detours)
    assert fields_of(timing, 5) == {
        "time_to_first_token_ms": 100.0,
        "generation_time_ms": 400.0,
        "queue_time_ms": 20.0,
        "mean_itl_ms": 100.0,
        "tokens_per_second": 10.0,
        "stages": {
            "receive": 0.001,
            "render": 0.002,
            "tokenize": 0.003,
            "submit": 0.003,
            "queue": 0.02,
            "prefill": 0.08,
            "decode": 0.26,
            "preempted": 0.08,
            "recompute": 0.05,
            "stalled": 0.03,
            "return": 0.01,
            "detokenize": 0.015,
            "deliver": 0.045,
        },
    }


def test_stages_are_the_ledgers_and_sum_to_the_whole() -> None:
    detours = Detours(preempted_ns=7, recompute_ns=5, stalled_ns=3, early_ns=4)
    timing = SequenceTiming(9, 15, 40, 90, tokenized_at=8, returned_at=91, ended_at=97, detours=detours)
    stages = stage_ns(Arrived(1, 3, 6), timing, 100)
    assert tuple(stages) == STAGES
    assert sum(stages.values()) == 99


def test_one_token_has_no_gap() -> None:
    fields = fields_of(SequenceTiming(10 * MS, 30 * MS, 130 * MS, 130 * MS), 1)
    assert (fields["generation_time_ms"], fields["mean_itl_ms"], fields["tokens_per_second"]) == (0.0, None, 10.0)


def test_what_did_not_take_place_is_null() -> None:
    assert fields_of(SequenceTiming(10 * MS, 30 * MS, 0, 0), 0) == dict.fromkeys(FIELDS) | {"queue_time_ms": 20.0}
    assert fields_of(SequenceTiming(0, 0, 0, 0), 0) == dict.fromkeys(FIELDS)


@pytest.mark.parametrize(("num_choices", "is_enabled"), [(2, True), (1, False)])
def test_several_sequences_and_a_server_without_the_flag_tell_nothing(num_choices: int, is_enabled: bool) -> None:
    assert fields_of(SequenceTiming(MS, 2 * MS, 3 * MS, 4 * MS), 2, num_choices, is_enabled) is None


def reply(path: str, body: dict[str, Any], is_enabled: bool = True) -> Any:
    async def scenario() -> Any:
        server = ServerConfig(enable_per_request_metrics=is_enabled)
        async with served(FakeEngine(lambda request: [30] * 9, seconds_a_token=0.001), server) as app:
            answer = await app.post(path, body)
            assert answer.status_code == 200
            return answer.text

    return asyncio.run(scenario())


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "Hi"}), (CHAT, {"messages": MESSAGES})])
def test_replies_carry_it_whole_and_in_the_last_chunk(path: str, body: dict[str, Any]) -> None:
    whole = json.loads(reply(path, {**body, "max_tokens": 4}))["metrics"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, done = reply(path, {**body, "max_tokens": 4, **options}).strip().split("\n\n")
    assert done == "data: [DONE]"
    streamed = json.loads(last.removeprefix("data: "))["metrics"]
    for metrics in (whole, streamed):
        assert list(metrics) == FIELDS
        assert metrics["queue_time_ms"] == 0.001
        stages = metrics.pop("stages")
        assert all(value > 0 for value in metrics.values())
        assert tuple(stages) == STAGES
        assert all(value >= 0 for value in stages.values())
        assert stages["decode"] > 0


def test_without_the_flag_the_field_is_null_and_no_chunk_has_it() -> None:
    body = {"messages": MESSAGES, "max_tokens": 2}
    assert json.loads(reply(CHAT, body, is_enabled=False))["metrics"] is None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert "metrics" not in reply(CHAT, body | options, is_enabled=False)


def test_several_prompts_have_none() -> None:
    assert json.loads(reply("/v1/completions", {"prompt": ["A", "B"], "max_tokens": 2}))["metrics"] is None
