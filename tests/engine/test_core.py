"""The engine core: answers in columns, aborts, utilities and records."""

import os
from typing import Any

import pytest
from core_bench import PROMPT, Bench, Seen
from fake_executor import VOCAB_SIZE, expected_output, tiny_config

from vllm_obs.engine.core_keyframes import TURN_STEPS
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.messages import (
    EngineFacts,
    FinishReason,
    SamplingSpec,
)
from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    BlocksKeyframe,
    EngineDescribed,
    EngineStateChanged,
    RequestKeyframe,
    RequestReleased,
    RequestTaken,
    StepAnswered,
    StepPlanned,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_facts_say_what_the_client_relies_on(bench: Bench) -> None:
    assert bench.core.facts == EngineFacts(
        engine_index=0,
        pid=os.getpid(),
        model="fake",
        dtype="float32",
        device="cpu",
        max_model_len=64,
        vocab_size=VOCAB_SIZE,
        num_gpu_blocks=32,
        block_size=4,
        kv_cache_size_tokens=128,
        kv_cache_max_concurrency=2.0,
        world_size=1,
        data_parallel_size=1,
        phases=[("load", 0.5)],
    )
    assert not bench.core.has_work()
    assert bench.core.step() == {}


def test_one_sequence_from_add_to_its_ending(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=3)
    outputs = bench.step()
    tokens = expected_output(PROMPT, 3)
    message = outputs[0]
    assert list(outputs) == [0]
    assert (message.client_index, message.engine_index, message.generation, message.step) == (0, 0, 0, 1)
    assert (message.request_ids, message.num_new_tokens, message.finish_reasons) == (["a"], [1], [-1])
    assert message.new_token_ids == tokens[:1]
    assert message.stats is not None
    assert (message.stats.num_running, message.stats.num_waiting) == (1, 0)
    assert 0 < message.sampled_at < message.sent_at

    assert bench.run() == {"a": Seen(tokens, FinishReason.LENGTH)}
    assert all(type(reason) is int for message in bench.messages for reason in message.finish_reasons)


def test_a_step_answers_each_client_with_its_own_rows(bench: Bench) -> None:
    for index, name in enumerate(["a0", "b1", "c0", "d1"]):
        spec = SamplingSpec(max_tokens=2, logprobs=0 if name in ("c0", "d1") else None)
        bench.add(name, [index, 5], sampling=spec, client_index=int(name[1]))
    outputs = bench.step()
    assert {client: message.request_ids for client, message in outputs.items()} == {
        0: ["a0", "c0"],
        1: ["b1", "d1"],
    }
    assert outputs[1].new_token_ids == [*expected_output([1, 5], 1), *expected_output([3, 5], 1)]
    for message in outputs.values():
        ((row, logprobs),) = message.logprobs
        assert row == 1
        assert logprobs.token_ids.tolist() == [[message.new_token_ids[1]]]


def test_prompt_log_probabilities_come_whole_with_the_first_token() -> None:
    bench = Bench(config=tiny_config(max_num_batched_tokens=4))
    bench.add("a", PROMPT, sampling=SamplingSpec(max_tokens=2, prompt_logprobs=0))
    bench.run()
    with_prompt = [message for message in bench.messages if message.prompt_logprobs]
    assert len(with_prompt) == 1
    ((row, logprobs),) = with_prompt[0].prompt_logprobs
    assert (row, logprobs.token_ids[:, 0].tolist()) == (0, PROMPT[1:])
    assert with_prompt[0].new_token_ids == expected_output(PROMPT, 1)


def test_prompt_log_probabilities_survive_preemption_once() -> None:
    bench = Bench(num_blocks=6)
    bench.add("a", [1] * 7, max_tokens=12)
    bench.add("b", [2] * 7, sampling=SamplingSpec(max_tokens=10, prompt_logprobs=0))
    bench.run()
    assert bench.core.scheduler.stats().num_preemptions_total > 0
    ((_, logprobs),) = [pair for message in bench.messages for pair in message.prompt_logprobs]
    assert logprobs.token_ids[:, 0].tolist() == [2] * 6


def test_cached_prompt_tokens_are_reported(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=1)
    bench.run()
    bench.add("b", PROMPT, max_tokens=2)
    assert bench.run()["b"] == Seen(expected_output(PROMPT, 2), FinishReason.LENGTH, num_cached_tokens=8)


def test_an_add_of_a_live_id_is_ignored_and_counted(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=3)
    bench.step()
    bench.add("a", [1, 2], max_tokens=9)
    assert bench.run()["a"].token_ids == expected_output(PROMPT, 3)
    assert bench.core.counters.num_duplicate_adds == 1


def test_an_abort_ends_a_sequence_once_with_its_reason(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=30)
    bench.add("b", PROMPT, max_tokens=3)
    bench.step()
    bench.abort("a", reason=FinishReason.STOP)
    bench.abort("a")
    bench.abort("never seen")
    seen = bench.run()
    assert seen["a"] == Seen(expected_output(PROMPT, 1), FinishReason.STOP)
    assert seen["b"].token_ids == expected_output(PROMPT, 3)
    assert bench.core.counters.num_unknown_aborts == 2
    released = [(r.request_id, r.finish_reason) for r in bench.recorder.of(RequestReleased)]  # type: ignore[union-attr]
    assert released == [("a", "stop"), ("b", "length")]


def test_an_id_is_taken_again_after_its_abort() -> None:
    bench = Bench()
    bench.add("a", PROMPT, max_tokens=30)
    bench.step()
    bench.abort("a")
    bench.step()
    bench.seen.clear()
    bench.add("a", [3, 4], max_tokens=2)
    assert bench.run()["a"].token_ids == expected_output([3, 4], 2)


def test_a_client_cannot_abort_the_sequence_of_another(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=3)
    bench.abort("a", client_index=1)
    assert bench.run()["a"].finish_reason == FinishReason.LENGTH
    assert bench.core.counters.num_unknown_aborts == 1


def test_an_unknown_reason_of_an_abort_counts_as_abort(bench: Bench) -> None:
    bench.add("a", PROMPT)
    bench.abort("a", reason=77)
    assert bench.run()["a"].finish_reason == FinishReason.ABORT


def test_utilities_are_those_on_the_list(bench: Bench) -> None:
    call = bench.core.call_utility
    assert call("ping", []) == "pong"
    assert call("get_supported_tasks", []) == ["generate"]
    assert call("is_sleeping", []) is False
    for method in ("shutdown", "__class__", "step", "", "x" * 1000):
        with pytest.raises(RequestError, match="no utility method"):
            call(method, [])
    with pytest.raises(RequestError, match="too many positional arguments"):
        call("ping", [1])


def test_the_prefix_cache_is_reset_only_while_nothing_runs(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=2)
    bench.step()
    assert bench.core.call_utility("reset_prefix_cache", []) is False
    bench.run()
    assert bench.core.call_utility("reset_prefix_cache", []) is True
    bench.add("b", PROMPT, max_tokens=2)
    assert bench.run()["b"].num_cached_tokens == 0


def test_pausing_keeps_waits_or_aborts() -> None:
    bench = Bench()
    call = bench.core.call_utility
    bench.add("a", PROMPT, max_tokens=4)
    bench.step()
    call("pause_scheduler", ["keep"])
    assert call("is_paused", []) is True
    assert not bench.core.has_work(), "the loop may sleep"
    call("resume_scheduler", [])
    assert call("is_paused", []) is False

    call("pause_scheduler", ["wait"])
    bench.add("b", PROMPT, max_tokens=2)
    while bench.core.has_work():
        bench.step()
    assert bench.seen["a"].token_ids == expected_output(PROMPT, 4)
    assert "b" not in bench.seen

    call("pause_scheduler", ["abort"])
    bench.step()
    assert bench.seen["b"].finish_reason == FinishReason.ABORT
    with pytest.raises(RequestError, match="abort, wait and keep"):
        call("pause_scheduler", ["sometimes"])
    call("resume_scheduler", [])
    bench.add("c", PROMPT, max_tokens=2)
    assert bench.run()["c"].token_ids == expected_output(PROMPT, 2)


def test_every_step_and_sequence_leaves_its_records() -> None:
    bench = Bench(config=tiny_config(max_num_batched_tokens=8, max_num_seqs=1))
    bench.add("a", PROMPT, max_tokens=2, submitted_at=7)
    bench.add("b", [1], max_tokens=1)
    bench.run()

    taken = bench.recorder.of(RequestTaken)
    assert taken[0] == RequestTaken("a", 0, 7, 3, 10, 2, 0)
    planned: list[Any] = bench.recorder.of(StepPlanned)
    assert [(p.request_ids, p.num_scheduled_tokens, p.num_computed_tokens, p.num_new_blocks) for p in planned] == [
        (["a"], [8], [0], [2]),
        (["a"], [2], [8], [1]),
        (["a"], [1], [10], [0]),
        (["b"], [1], [0], [1]),
    ]
    assert [(p.admitted_ids, p.head_reason, p.num_waiting) for p in planned[:2]] == [
        (["a"], "max_num_seqs", 1),
        ([], "max_num_seqs", 1),
    ]
    assert all(p.num_free_blocks + p.num_cached_blocks + p.num_active_blocks == 32 for p in planned)
    assert all(p.schedule_begun_at < p.schedule_ended_at for p in planned)
    answered: list[Any] = bench.recorder.of(StepAnswered)
    assert [(a.step, a.request_ids, a.num_new_tokens) for a in answered] == [
        (1, [], []),
        (2, ["a"], [1]),
        (3, ["a"], [1]),
        (4, ["b"], [1]),
    ]
    assert all(a.executed_at < a.sampled_at < a.updated_at for a in answered)
    released: list[Any] = bench.recorder.of(RequestReleased)
    assert [(r.request_id, r.finish_reason, r.num_output_tokens) for r in released] == [
        ("a", "length", 2),
        ("b", "length", 1),
    ]
    changed: list[Any] = bench.recorder.of(BlocksChanged)
    assert [(c.step, c.request_ids, c.allocated, c.freed) for c in changed] == [
        (1, ["a"], [[0, 1]], [[]]),
        (2, ["a"], [[2]], [[]]),
        (3, ["a"], [[]], [[0, 1, 2]]),
        (4, ["b"], [[2]], [[]]),
        (4, ["b"], [[]], [[2]]),
    ]
    (cached,) = bench.recorder.of(BlocksCached)
    assert (cached.block_ids, cached.evicted) == ([0, 1], False)  # type: ignore[union-attr]
    assert [len(block_hash) for block_hash in cached.hashes] == [8, 8]  # type: ignore[union-attr]


def test_wasted_rows_are_counted(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=5)
    bench.executor.before_sample = lambda: bench.abort("a")
    bench.step()
    bench.executor.before_sample = lambda: None
    assert bench.run()["a"] == Seen([], FinishReason.ABORT)
    assert bench.core.counters.num_wasted_rows == 1
    answered: list[Any] = bench.recorder.of(StepAnswered)
    assert [(a.request_ids, a.num_wasted_rows) for a in answered] == [([], 1)]


def test_shutdown_ends_the_executor(bench: Bench) -> None:
    bench.core.shutdown()
    bench.core.shutdown()
    assert bench.executor.is_shut_down


def test_the_engine_describes_itself_and_says_that_it_is_awake(bench: Bench) -> None:
    described, state = list(bench.recorder.records)
    assert described == EngineDescribed(
        engine_index=0,
        generation=0,
        model_names=["fake"],
        dtype="float32",
        device="cpu",
        max_model_len=64,
        max_num_seqs=described.max_num_seqs,  # type: ignore[union-attr]
        max_num_batched_tokens=described.max_num_batched_tokens,  # type: ignore[union-attr]
        num_blocks=32,
        block_size=4,
        cache_dtype="float32",
        kv_cache_bytes=described.kv_cache_bytes,  # type: ignore[union-attr]
        gpu_memory_utilization=0.9,
        enable_prefix_caching=True,
        num_blocks_override=0,
        world_size=1,
        weight_bytes=described.weight_bytes,  # type: ignore[union-attr]
        flops_per_token=described.flops_per_token,  # type: ignore[union-attr]
        kv_bytes_per_token=described.kv_cache_bytes // (32 * 4),  # type: ignore[union-attr]
        described_at=1,
    )
    assert state == EngineStateChanged("awake", 2)


def test_a_pause_and_its_end_are_recorded_once_each(bench: Bench) -> None:
    for method in ("pause_scheduler", "pause_scheduler", "resume_scheduler", "resume_scheduler"):
        bench.core.call_utility(method, [])
    states: list[Any] = bench.recorder.of(EngineStateChanged)
    assert [record.state for record in states] == ["awake", "paused", "awake"]


def test_the_token_of_a_scored_prompt_is_nobodys(bench: Bench) -> None:
    end_token = expected_output(PROMPT, 1)[0]
    sampling = SamplingSpec(max_tokens=0, stop_token_ids=(end_token,))
    bench.add("a", PROMPT, sampling=sampling)
    assert bench.run()["a"].finish_reason == FinishReason.LENGTH
    (taken,) = bench.recorder.of(RequestTaken)
    (released,) = bench.recorder.of(RequestReleased)
    (answered,) = bench.recorder.of(StepAnswered)
    assert taken.max_tokens == 0  # type: ignore[union-attr]
    assert (released.num_output_tokens, released.finish_reason) == (0, "length")  # type: ignore[union-attr]
    assert (answered.request_ids, answered.num_new_tokens) == (["a"], [0])  # type: ignore[union-attr]


def test_answered_steps_leave_their_keyframes_in_turn(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=2 * TURN_STEPS + 1)
    bench.run()
    blocks: list[Any] = bench.recorder.of(BlocksKeyframe)
    requests: list[Any] = bench.recorder.of(RequestKeyframe)
    turns = [1, 1 + TURN_STEPS, 1 + 2 * TURN_STEPS]
    assert [(each.step, each.first_block, len(each.hashes)) for each in blocks] == [(n, 0, 32) for n in turns]
    assert [(each.step, each.request_id, each.num_output_tokens) for each in requests] == [
        (step, "a", step) for step in turns[:-1]
    ]


def test_a_sequences_timing_comes_once_with_its_first_row() -> None:
    bench = Bench(config=tiny_config(max_num_batched_tokens=8, max_num_seqs=1))
    bench.add("a", PROMPT, max_tokens=2)
    bench.add("b", [1], max_tokens=1)
    bench.run()
    planned: list[Any] = bench.recorder.of(StepPlanned)
    taken: list[Any] = bench.recorder.of(RequestTaken)
    first = {name: next(p.schedule_ended_at for p in planned if name in p.admitted_ids) for name in "ab"}
    told = [
        (message.request_ids[row], taken_at, scheduled_at)
        for message in bench.messages
        for row, taken_at, scheduled_at in message.timings
    ]
    assert told == [("a", taken[0].taken_at, first["a"]), ("b", taken[1].taken_at, first["b"])]
