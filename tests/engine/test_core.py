"""The engine core: answers in columns, refusals, aborts, boundaries, failing steps, utilities and records."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fake_executor import VOCAB_SIZE, FakeExecutor, expected_output, make_request, tiny_config

from vllm_obs.engine import scheduler_state, step_planner
from vllm_obs.engine.block_pool import BlockCountError
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import MAX_FAILED_STEPS, EngineCore
from vllm_obs.engine.errors import EngineDeadError, RequestError
from vllm_obs.engine.messages import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    FinishReason,
    SamplingSpec,
)
from vllm_obs.engine.plan import StepPlan
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    RequestReleased,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
)

PROMPT = list(range(100, 110))


@dataclass
class Seen:
    """What one client saw of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: int = -1
    stop_token_id: int = -1
    num_cached_tokens: int = 0
    error: tuple[str, str] | None = None


class Bench:
    """A core over the fake executor, a clock that counts, and what its clients saw."""

    def __init__(self, num_blocks: int = 32, config: VllmConfig | None = None) -> None:
        self.now = 0
        self.recorder = MemoryRecorder()
        self.executor = FakeExecutor(num_blocks)
        self.core = EngineCore(config or tiny_config(), self.executor, self.recorder, self.tick)
        self.seen: dict[str, Seen] = {}
        self.messages: list[EngineCoreOutputs] = []

    def tick(self) -> int:
        self.now += 1
        return self.now

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 4, **fields: Any) -> None:
        self.core.add_request(make_request(request_id, prompt, max_tokens, **fields))

    def abort(self, *request_ids: str, reason: int = FinishReason.ABORT, client_index: int = 0) -> None:
        self.core.abort_requests(AbortRequests(client_index, 0, list(request_ids), reason))

    def step(self) -> dict[int, EngineCoreOutputs]:
        outputs = self.core.step()
        for message in outputs.values():
            self.take(message)
        return outputs

    def take(self, message: EngineCoreOutputs) -> None:
        self.messages.append(message)
        begin = 0
        for row, request_id in enumerate(message.request_ids):
            seen = self.seen.setdefault(request_id, Seen())
            assert seen.finish_reason == -1, "nothing comes after an ending"
            end = begin + message.num_new_tokens[row]
            seen.token_ids += message.new_token_ids[begin:end].tolist()
            seen.finish_reason = message.finish_reasons[row]
            seen.stop_token_id = message.stop_token_ids[row]
            seen.num_cached_tokens = message.num_cached_tokens[row]
            begin = end
        assert begin == len(message.new_token_ids)
        for row, reason, text in message.errors:
            self.seen[message.request_ids[row]].error = (reason, text)

    def run(self, max_steps: int = 300) -> dict[str, Seen]:
        for _ in range(max_steps):
            if not self.core.has_work():
                self.check_idle()
                return self.seen
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def check_idle(self) -> None:
        pool = self.core.scheduler.kv_cache.pool
        assert self.core.scheduler.num_live == 0
        assert pool.num_active == 0
        assert self.executor.row_ids == set()
        self.core.scheduler.check()


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
    assert message.new_token_ids.dtype == np.int32
    assert message.new_token_ids.tolist() == tokens[:1]
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
    assert outputs[1].new_token_ids.tolist() == [*expected_output([1, 5], 1), *expected_output([3, 5], 1)]
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
    assert with_prompt[0].new_token_ids.tolist() == expected_output(PROMPT, 1)


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
    {"max_tokens": 0},
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
        {"cache_salt": ""},
        {"cache_salt": "x" * 5000},
        {"prompt_token_ids": np.array([[1, 2]], dtype=np.int32)},
        {"prompt_token_ids": np.array([1.0, 2.0])},
    ],
    ids=["priority", "empty salt", "long salt", "matrix", "floats"],
)
def test_other_bad_fields_are_answered_with_an_error_row(bench: Bench, fields: dict[str, Any]) -> None:
    bench.add("bad", [1, 2], **fields)
    assert bench.run()["bad"].error is not None


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


def poison(monkeypatch: pytest.MonkeyPatch, request_id: str) -> None:
    def fault(site: str, name: str = "") -> None:
        if site == "scheduler" and name == request_id:
            raise RuntimeError("planted")

    monkeypatch.setattr(step_planner, "maybe_fault", fault)


def test_a_poison_request_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "bad")
    for name in ("a", "bad", "c"):
        bench.add(name, PROMPT, max_tokens=3)
    seen = bench.run()
    assert seen["bad"] == Seen([], FinishReason.ERROR, error=("internal_error", scheduler_state.INTERNAL_ERROR))
    assert seen["a"].token_ids == seen["c"].token_ids == expected_output(PROMPT, 3)
    assert bench.core.counters.num_failed_steps == 0
    assert bench.core.counters.num_failed_requests == 1


def test_an_error_while_a_running_sequence_grows_fails_it_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add("bad", [1, 2, 3, 4], max_tokens=9)
    bench.add("good", [5, 6, 7, 8], max_tokens=9)
    bench.step()
    kv_cache = bench.core.scheduler.kv_cache
    allocate = kv_cache.allocate_slots

    def failing(request: Any, *args: Any) -> Any:
        if request.request_id == "bad":
            raise RuntimeError("planted")
        return allocate(request, *args)

    monkeypatch.setattr(kv_cache, "allocate_slots", failing)
    seen = bench.run()
    assert seen["bad"].finish_reason == FinishReason.ERROR
    assert seen["good"].token_ids == expected_output([5, 6, 7, 8], 9)


def test_an_error_while_an_answer_is_applied_fails_its_row_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv_cache = bench.core.scheduler.kv_cache
    cache_blocks = kv_cache.cache_blocks

    def failing(request: Any, num_tokens: int) -> None:
        if request.request_id == "bad":
            raise RuntimeError("planted")
        cache_blocks(request, num_tokens)

    monkeypatch.setattr(kv_cache, "cache_blocks", failing)
    bench.add("bad", PROMPT, max_tokens=3)
    bench.add("good", PROMPT, max_tokens=3)
    seen = bench.run()
    assert (seen["bad"].token_ids, seen["bad"].finish_reason) == ([], FinishReason.ERROR)
    assert seen["good"].token_ids == expected_output(PROMPT, 3)


def test_a_row_with_broken_logits_fails_alone(bench: Bench) -> None:
    bench.executor.failing.add("bad")
    bench.add("bad", PROMPT)
    bench.add("good", PROMPT, max_tokens=3)
    seen = bench.run()
    assert seen["bad"].error == ("invalid_logits", "The logits are not numbers.")
    assert seen["good"].token_ids == expected_output(PROMPT, 3)


def fail_once(error: Exception) -> Callable[[StepPlan], None]:
    errors = [error]

    def hook(plan: StepPlan) -> None:
        if errors:
            raise errors.pop()

    return hook


def test_an_unexpected_error_in_a_step_fails_its_batch_and_the_engine_goes_on() -> None:
    bench = Bench(config=tiny_config(max_num_seqs=2))
    bench.executor.before_execute = fail_once(RuntimeError("secret detail"))
    for name in ("a", "b", "later"):
        bench.add(name, PROMPT, max_tokens=3)
    seen = bench.run()
    for name in ("a", "b"):
        assert seen[name] == Seen([], FinishReason.ERROR, error=("internal_error", scheduler_state.INTERNAL_ERROR))
    assert seen["later"].token_ids == expected_output(PROMPT, 3)
    (failed,) = bench.recorder.of(StepFailed)
    assert failed.request_ids == ["a", "b"]  # type: ignore[union-attr]
    assert bench.core.counters.num_failed_steps == 1


def test_an_error_while_sampling_fails_the_batch(bench: Bench) -> None:
    def broken() -> None:
        raise RuntimeError("planted")

    bench.add("a", PROMPT, max_tokens=5)
    bench.step()
    bench.executor.before_sample = broken
    bench.step()
    assert bench.seen["a"].error is not None
    assert bench.seen["a"].token_ids == expected_output(PROMPT, 1)


@pytest.mark.parametrize(("method", "fails"), [("update_from_output", True), ("schedule", False)])
def test_an_error_in_the_scheduler_fails_what_runs_and_not_what_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, fails: bool
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("planted")

    bench.add("a", PROMPT, max_tokens=5)
    with monkeypatch.context() as patch:
        patch.setattr(bench.core.scheduler, method, broken)
        bench.step()
    bench.add("b", PROMPT, max_tokens=5)
    seen = bench.run()
    assert (seen["a"].error is not None) == fails
    assert seen["b"].token_ids == expected_output(PROMPT, 5)


def test_what_a_failed_step_should_have_released_is_released_by_the_next() -> None:
    bench = Bench()
    bench.add("a", PROMPT, max_tokens=1)
    bench.step()
    bench.add("b", PROMPT, max_tokens=1)
    bench.executor.before_execute = fail_once(RuntimeError("planted"))
    bench.run()
    assert bench.executor.row_ids == set()


def test_the_third_failed_step_in_a_row_is_raised() -> None:
    bench = Bench(config=tiny_config(max_num_seqs=1))

    def always(plan: StepPlan) -> None:
        raise RuntimeError("planted")

    bench.executor.before_execute = always
    for index in range(MAX_FAILED_STEPS + 1):
        bench.add(f"r{index}", PROMPT)
    for _ in range(MAX_FAILED_STEPS - 1):
        bench.step()
    with pytest.raises(EngineDeadError, match="3 steps failed in a row"):
        bench.step()


def test_a_step_that_works_ends_a_row_of_failures() -> None:
    bench = Bench(config=tiny_config(max_num_seqs=1))
    for index in range(10):
        bench.executor.before_execute = fail_once(RuntimeError("planted"))
        bench.add(f"bad{index}", PROMPT, max_tokens=1)
        bench.add(f"good{index}", PROMPT, max_tokens=1)
        bench.run()
        assert bench.seen[f"good{index}"].token_ids == expected_output(PROMPT, 1)
    assert bench.core.counters.num_failed_steps == 10


def test_wrong_books_after_an_error_are_raised_at_once(bench: Bench) -> None:
    bench.add("a", PROMPT, max_tokens=5)
    bench.step()
    bench.core.scheduler.running[0].block_ids.pop()
    bench.executor.before_execute = fail_once(RuntimeError("planted"))
    with pytest.raises(BlockCountError, match="1 references, 0 tables"):
        bench.step()


def test_a_dead_executor_is_raised_at_once(bench: Bench) -> None:
    bench.add("a", PROMPT)
    bench.executor.before_execute = fail_once(EngineDeadError("rank 1 is gone"))
    with pytest.raises(EngineDeadError, match="rank 1 is gone"):
        bench.step()


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
    assert taken[0] == RequestTaken("a", 0, 7, 1, 10, 2, 0)
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
    assert [(c.request_id, c.allocated, c.freed) for c in changed] == [
        ("a", [0, 1], []),
        ("a", [2], []),
        ("a", [], [0, 1, 2]),
        ("b", [2], []),
        ("b", [], [2]),
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


def test_a_message_of_wrong_types_is_answered_too(bench: Bench) -> None:
    request = make_request("bad", [1, 2])
    bench.core.add_request(EngineCoreRequest(*request[:3], None, *request[4:]))  # type: ignore[arg-type]
    assert bench.run()["bad"].error == ("internal_error", "The request could not be taken.")
