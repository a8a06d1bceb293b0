"""Prompts that become vectors in the core: one ending each with the vector, prefixes shared or not, and bounds."""

from typing import Any

import numpy as np
import pytest
from core_bench import PROMPT, Bench
from fake_executor import tiny_config

from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.telemetry.records import RequestReleased, StepAnswered, StepPlanned

LONG = list(range(100, 140))


def spec(kind: str) -> SamplingSpec:
    return SamplingSpec(max_tokens=0, pooling=kind)


def vectors(bench: Bench) -> dict[str, list[float]]:
    """The vectors that clients got, by sequence; each once, with its ending."""
    found: dict[str, list[float]] = {}
    for message in bench.messages:
        for row, vector in message.pooled:
            assert message.finish_reasons[row] == FinishReason.STOP
            assert message.request_ids[row] not in found
            found[message.request_ids[row]] = vector.tolist()
    return found


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
def test_a_chunked_prompt_gives_one_vector_beside_what_is_generated(kind: str) -> None:
    bench = Bench(config=tiny_config(max_num_batched_tokens=16))
    bench.add("v", LONG, sampling=spec(kind))
    bench.add("t", PROMPT, max_tokens=3)
    seen = bench.run()
    assert (seen["v"].finish_reason, seen["t"].finish_reason) == (FinishReason.STOP, FinishReason.LENGTH)
    assert len(seen["t"].token_ids) == 3
    assert list(vectors(bench)) == ["v"]
    assert vectors(bench)["v"][1] == len(LONG)
    assert not bench.core.scheduler.num_live
    bench.core.scheduler.check()


def test_the_record_tells_of_no_token() -> None:
    bench = Bench()
    bench.add("v", PROMPT, sampling=spec("last"))
    bench.run()
    (answered,) = [record for record in bench.recorder.records if isinstance(record, StepAnswered)]
    (released,) = [record for record in bench.recorder.records if isinstance(record, RequestReleased)]
    assert (answered.request_ids, answered.num_new_tokens) == (["v"], [0])
    assert (released.finish_reason, released.num_output_tokens) == ("stop", 0)


@pytest.mark.parametrize(("kind", "num_cached"), [("last", 8), ("mean", 0), ("cls", 0)])
def test_a_cached_prefix_is_used_where_only_the_last_state_counts(kind: str, num_cached: int) -> None:
    bench = Bench()
    bench.add("first", PROMPT, sampling=spec(kind))
    bench.run()
    bench.add("second", PROMPT, sampling=spec(kind))
    bench.run()
    planned = [
        record for record in bench.recorder.records if isinstance(record, StepPlanned) if record.admitted_ids
    ]
    assert [record.admitted_cached_tokens for record in planned] == [[0], [num_cached]]
    found = vectors(bench)
    assert found["first"] == found["second"]


def test_a_prompt_may_fill_the_context() -> None:
    bench = Bench(config=tiny_config(max_num_batched_tokens=64))
    bench.add("v", [1] * 64, sampling=spec("mean"))
    assert bench.run()["v"].finish_reason == FinishReason.STOP
    bench.add("w", [1] * 65, sampling=spec("mean"))
    seen = bench.run()["w"]
    assert seen.error is not None
    assert seen.error[0] == "context_length_exceeded"


@pytest.mark.parametrize(
    "sampling", [SamplingSpec(max_tokens=0, pooling="max"), SamplingSpec(max_tokens=1, pooling="mean")]
)
def test_what_cannot_be_pooled_is_refused(sampling: SamplingSpec) -> None:
    bench = Bench()
    bench.add("v", PROMPT, sampling=sampling)
    error = bench.run()["v"].error
    assert error is not None
    assert error[0] == "invalid_value"


@pytest.mark.parametrize(("how", "reason"), [("failing", "invalid_logits"), ("silent", "internal_error")])
def test_a_row_without_a_vector_fails_alone(how: str, reason: str) -> None:
    bench = Bench()
    bad: Any = getattr(bench.executor, how)
    bad.add("bad")
    bench.add("bad", PROMPT, sampling=spec("mean"))
    bench.add("good", PROMPT, sampling=spec("mean"))
    seen = bench.run()
    assert seen["bad"].error is not None
    assert seen["bad"].error[0] == reason
    assert list(vectors(bench)) == ["good"]


def test_rows_of_two_clients_each_get_their_own_vector() -> None:
    bench = Bench()
    bench.add("a", PROMPT, sampling=spec("last"))
    bench.add("b", LONG[:6], sampling=spec("last"), client_index=1)
    bench.run()
    pooled = {
        message.client_index: [(message.request_ids[row], int(vector[1])) for row, vector in message.pooled]
        for message in bench.messages
    }
    assert pooled == {0: [("a", 10)], 1: [("b", 6)]}
    assert all(vector.dtype == np.float32 for message in bench.messages for _, vector in message.pooled)
