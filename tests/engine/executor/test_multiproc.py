"""The executor of worker processes: the same answers, errors that stay in their step, deaths that are named."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_executor import FakeExecutor, expected_output, make_request, tiny_config
from process_watch import cpu_seconds, gone

from vllm_obs.engine.config import ParallelConfig, VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.errors import ConfigError, EngineDeadError, StartupError
from vllm_obs.engine.executor import multiproc, pending_calls
from vllm_obs.engine.executor.commands import CallFailed, Executed, PeersMissing, Sampled, WorkerStepError
from vllm_obs.engine.executor.factory import make_executor
from vllm_obs.engine.executor.multiproc import MultiprocExecutor, Queues
from vllm_obs.engine.executor.pending_calls import PendingCalls
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.telemetry.recorder import MemoryRecorder, NullRecorder

pytestmark = pytest.mark.usefixtures("child_modules")

FAKE_WORKER = "fake_worker_process"
WAIT_SECONDS = 30.0

Make = Callable[..., MultiprocExecutor]


def mp_config(world_size: int = 1) -> VllmConfig:
    return replace(tiny_config(), parallel=ParallelConfig("mp", world_size))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """`make(world_size, faults)` starts an initialized executor; all are shut down and nothing is left open."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    made: list[MultiprocExecutor] = []

    def make_executor(world_size: int = 1, faults: str = "") -> MultiprocExecutor:
        monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
        monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", faults)
        executor = MultiprocExecutor(mp_config(world_size), MemoryRecorder(), FAKE_WORKER)
        made.append(executor)
        executor.initialize()
        return executor

    yield make_executor
    for executor in made:
        executor.shutdown()
        executor.shutdown()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("ranks", "num_shards", "woken", "relaying"),
    [
        pytest.param(range(8), 8, [0], [0], id="eight-shards"),
        pytest.param(range(8), 4, [0, 4], [0, 4], id="four-shards-by-two-stages"),
        pytest.param(range(4), 2, [0, 2], [0, 2], id="two-shards-by-two-stages"),
        pytest.param(range(3), 1, [0, 1, 2], [], id="three-stages"),
        pytest.param(range(4, 8), 8, [0], [0], id="half-of-eight-shards"),
        pytest.param(range(3, 9), 6, [0, 3], [0, 3], id="halves-of-two-stages"),
    ],
)
def test_the_first_shard_of_a_stage_wakes_the_others(
    ranks: range, num_shards: int, woken: list[int], relaying: list[int]
) -> None:
    queues = Queues.create(ranks, num_shards)
    plans = queues.plans
    assert len(plans.event_fds) == len(plans.relays) == len(queues.replies) == len(ranks)
    assert [index for index, fd in enumerate(plans.event_fds) if fd == plans.event_fds[0]] == woken
    assert [index for index, fd in enumerate(plans.relays) if fd >= 0] == relaying
    by_writer = {plans.event_fds[index] for index in woken}
    assert by_writer | set(plans.relays) - {-1} == set(plans.event_fds)
    queues.close()


def plan_for(request_id: str, step: int = 1) -> StepPlan:
    message = make_request(request_id, [1, 2, 3])
    row = NewRow(request_id, message.prompt_token_ids, 3, message.sampling, [0], 0)
    return StepPlan(step, [row], [], [], [], [], [3], [])


def run(executor: MultiprocExecutor, plan: StepPlan) -> ModelRunnerOutput:
    executed = executor.execute_model(plan)
    sampled = executor.sample_tokens(None)
    assert executed.result(WAIT_SECONDS) is None
    return sampled.result(WAIT_SECONDS)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_plan_is_answered_as_in_this_process(make: Make, world_size: int) -> None:
    executor = make(world_size)
    expected = FakeExecutor(8).run(plan_for("a"))
    assert run(executor, plan_for("a")) == expected
    release = StepPlan(2, [], [], [], [], [], [], ["a"])
    assert executor.execute_model(release).result(WAIT_SECONDS) is None
    assert run(executor, plan_for("a", step=3)) == expected._replace(step=3)


def test_the_core_serves_over_it(child_modules: None) -> None:
    core = EngineCore(mp_config(2), MultiprocExecutor(mp_config(2), NullRecorder(), FAKE_WORKER), NullRecorder())
    try:
        assert core.facts.num_gpu_blocks == 31
        prompts = {f"r{index}": list(range(index, index + 6)) for index in range(6)}
        for request_id, prompt in prompts.items():
            core.add_request(make_request(request_id, prompt, max_tokens=5))
        tokens: dict[str, list[int]] = {request_id: [] for request_id in prompts}
        while core.has_work():
            for outputs in core.step().values():
                start = 0
                for request_id, num_tokens in zip(outputs.request_ids, outputs.num_new_tokens, strict=True):
                    tokens[request_id] += outputs.new_token_ids[start : start + num_tokens]
                    start += num_tokens
        assert tokens == {request_id: expected_output(prompt, 5) for request_id, prompt in prompts.items()}
    finally:
        core.shutdown()


def test_the_cache_is_as_large_as_the_smallest_rank_allows(make: Make) -> None:
    executor = MultiprocExecutor(mp_config(3), NullRecorder(), FAKE_WORKER)
    try:
        capacity = executor.initialize()
        assert (capacity.num_blocks, capacity.available_bytes) == (30, 30_000)
        phases = [name for name, _ in executor.startup_phases()]
        assert phases == ["import torch", "load weights", "kv cache", "warm-up"]
    finally:
        executor.shutdown()


def test_an_error_in_a_step_fails_that_step_and_the_worker_goes_on(make: Make) -> None:
    executor = make(2, "execute_0=raise:poison,execute_1=raise:poison")
    executed = executor.execute_model(plan_for("poison"))
    sampled = executor.sample_tokens(None)
    with pytest.raises(WorkerStepError, match="InjectedFaultError: planted at execute_0"):
        executed.result(WAIT_SECONDS)
    with pytest.raises(WorkerStepError, match="InjectedFaultError: planted at execute_0"):
        sampled.result(WAIT_SECONDS)
    assert run(executor, plan_for("a", step=2)) == FakeExecutor(8).run(plan_for("a", step=2))


def test_an_error_in_sampling_fails_the_sampling_only(make: Make) -> None:
    executor = make(1, "sample_0=raise")
    executed, sampled = executor.execute_model(plan_for("a")), executor.sample_tokens(None)
    assert executed.result(WAIT_SECONDS) is None
    with pytest.raises(WorkerStepError, match="planted at sample_0"):
        sampled.result(WAIT_SECONDS)


def test_the_sites_of_a_worker_can_be_made_to_fail(make: Make) -> None:
    executor = make(1, "worker_step=raise")
    with pytest.raises(WorkerStepError, match="planted at worker_step"):
        executor.execute_model(plan_for("a")).result(WAIT_SECONDS)
    with pytest.raises(StartupError, match="planted at worker_start"):
        make(1, "worker_start=raise")


def test_a_rank_that_fails_alone_ends_the_executor_and_is_named(make: Make) -> None:
    executor = make(2, "execute_1=raise")
    causes: list[str] = []
    executor.on_failure(causes.append)
    executor.execute_model(plan_for("a"))
    sampled = executor.sample_tokens(None)
    deadline = time.monotonic() + WAIT_SECONDS
    while not causes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert causes == ["Worker_TP1 failed in a step alone: InjectedFaultError: planted at execute_1"]
    sampled.exception(WAIT_SECONDS)
    with pytest.raises(EngineDeadError, match="Worker_TP1 failed in a step alone"):
        executor.execute_model(plan_for("b")).result(WAIT_SECONDS)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_fails_what_is_pending_within_a_second_and_is_named(make: Make, rank: int) -> None:
    executor = make(2, "execute_0=hang,execute_1=hang")
    causes: list[str] = []
    executor.on_failure(causes.append)
    pending: list[Future[Any]] = [executor.execute_model(plan_for("a")), executor.sample_tokens(None)]
    os.kill(executor._children[rank].pid, signal.SIGKILL)
    begun = time.monotonic()
    for future in pending:
        with pytest.raises(EngineDeadError, match=f"Worker_TP{rank} was killed by SIGKILL"):
            future.result(WAIT_SECONDS)
    assert time.monotonic() - begun < 3.0
    assert causes == [f"Worker_TP{rank} was killed by SIGKILL"]
    late: list[str] = []
    executor.on_failure(late.append)
    assert late == causes


def test_a_rank_that_does_not_read_is_named_after_a_bound(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiproc, "PLAN_TIMEOUT_SECONDS", 0.3)
    executor = make(2)
    os.kill(executor._children[1].pid, signal.SIGSTOP)
    futures = [executor.execute_model(StepPlan(step, [], [], [], [], [], [], [])) for step in range(40)]
    with pytest.raises(EngineDeadError, match=r"Worker_TP1 takes no plans: .*timeout"):
        futures[-1].result(WAIT_SECONDS)


def test_a_rank_that_does_not_answer_is_named_after_a_bound(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_calls, "CALL_DEADLINE_SECONDS", 0.3)
    executor = make(1, "execute_0=hang")
    with pytest.raises(EngineDeadError, match="Worker_TP0 did not answer a call within"):
        executor.execute_model(plan_for("a")).result(WAIT_SECONDS)


def test_a_model_that_cannot_be_used_is_told_in_the_workers_own_words(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"^the model cannot be used$"):
        make(2, "load_1=raise")


def test_a_worker_killed_while_it_loads_is_named(make: Make) -> None:
    with pytest.raises(StartupError, match="Worker_TP1 was killed by SIGKILL"):
        make(2, "load_1=kill,load_0=delay:0.5")


def test_shutting_down_ends_every_rank_within_seconds_whatever_it_does(make: Make) -> None:
    executor = make(2, "execute_0=hang,execute_1=hang")
    pids = [child.pid for child in executor._children]
    pending = executor.execute_model(plan_for("a"))
    os.kill(pids[1], signal.SIGSTOP)
    begun = time.monotonic()
    executor.shutdown()
    assert time.monotonic() - begun < 9.0
    assert all(gone(pid, 1.0) for pid in pids)
    with pytest.raises(EngineDeadError, match="shut down"):
        pending.result(WAIT_SECONDS)


def test_idle_workers_sleep_and_nothing_lies_in_shared_memory(make: Make) -> None:
    shared = set(Path("/dev/shm").iterdir())
    executor = make(2)
    assert set(Path("/dev/shm").iterdir()) <= shared
    run(executor, plan_for("a"))
    pids = [child.pid for child in executor._children]
    before = sum(cpu_seconds(pid) for pid in pids)
    time.sleep(1.0)
    assert sum(cpu_seconds(pid) for pid in pids) - before < 0.1


def test_the_factory_follows_the_configuration() -> None:
    executor = make_executor(mp_config(1), NullRecorder())
    assert isinstance(executor, MultiprocExecutor)
    executor.shutdown()
    with pytest.raises(ConfigError, match="runs one rank, not 2"):
        make_executor(replace(tiny_config(), parallel=ParallelConfig("uni", 2)), NullRecorder())


TITLES = ("Worker_TP0", "Worker_TP1")
ANSWER = ModelRunnerOutput(1, ["a"], [5], [], [], [], [])


class TestPendingCalls:
    """What the ranks' replies mean together."""

    def test_the_output_ranks_replies_resolve_their_calls(self) -> None:
        calls = PendingCalls(TITLES)
        (first, executed), (second, sampled) = calls.register(), calls.register()
        assert calls.take(0, Executed(first)) is None
        assert calls.take(0, Sampled(second, ANSWER)) is None
        assert (executed.result(0), sampled.result(0)) == (None, ANSWER)

    def test_a_failure_of_all_ranks_is_the_calls_whatever_the_order(self) -> None:
        calls = PendingCalls(TITLES)
        for order in ((0, 1), (1, 0)):
            call_id, future = calls.register()
            assert [calls.take(rank, CallFailed(call_id, "x")) for rank in order] == [None, None]
            assert isinstance(future.exception(0), WorkerStepError)

    def test_a_failure_of_one_rank_is_a_cause_whatever_the_order(self) -> None:
        calls = PendingCalls(TITLES)
        call_id, _ = calls.register()
        assert calls.take(0, Executed(call_id)) is None
        assert calls.take(1, CallFailed(call_id, "x")) == "Worker_TP1 failed in a step alone: x"
        call_id, _ = calls.register()
        assert calls.take(1, CallFailed(call_id, "x")) is None
        assert calls.take(0, Executed(call_id)) == "Worker_TP1 failed in a step alone: x"

    def test_the_output_rank_may_not_hang_behind_a_failed_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = PendingCalls(TITLES)
        call_id, _ = calls.register()
        calls.take(1, CallFailed(call_id, "x"))
        assert calls.overdue() is None
        monkeypatch.setattr(pending_calls, "STRAY_DEADLINE_SECONDS", -1.0)
        assert calls.overdue() == "Worker_TP1 failed in a step alone: x"

    def test_the_output_rank_need_not_be_the_first(self) -> None:
        calls = PendingCalls(("Worker_TP0_PP0", "Worker_TP0_PP1"), output_rank=1)
        call_id, executed = calls.register()
        assert calls.take(1, Executed(call_id)) is None
        assert executed.result(0) is None
        call_id, _ = calls.register()
        cause = "Worker_TP0_PP0 sent a reply that only the output rank may send"
        assert calls.take(0, Executed(call_id)) == cause

    def test_of_ranks_that_wait_for_each_other_the_one_that_does_not_wait_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = PendingCalls(
            [f"Worker_TP{shard}_PP{stage}" for stage in (0, 1) for shard in (0, 1)], output_rank=2
        )
        calls.register()
        # Rank 1 stands still: its fellow shard waits for it, and the stage behind for those two.
        assert calls.take(2, PeersMissing(1, [0], "rank 2 waited 12.0 s for rank 0")) is None
        assert calls.take(0, PeersMissing(1, [1], "rank 0 waited 8.0 s for rank 1")) is None
        assert calls.overdue() is None
        monkeypatch.setattr(pending_calls, "MISSING_GRACE_SECONDS", -1.0)
        assert calls.overdue() == (
            "Worker_TP1_PP0 did not come to an exchange of a step: Worker_TP0_PP1: rank 2 waited 12.0 s for rank 0"
        )

    def test_other_ranks_may_not_answer(self) -> None:
        calls = PendingCalls(TITLES)
        call_id, _ = calls.register()
        assert calls.take(1, Executed(call_id)) == "Worker_TP1 sent a reply that only the output rank may send"

    def test_unknown_and_repeated_replies_are_ignored(self) -> None:
        calls = PendingCalls(TITLES)
        call_id, future = calls.register()
        assert [calls.take(0, Executed(number)) for number in (call_id, call_id, 99)] == [None] * 3
        assert future.result(0) is None

    def test_once_dead_every_call_fails_with_the_first_cause(self) -> None:
        calls = PendingCalls(TITLES)
        _, before = calls.register()
        calls.fail_all("first")
        calls.fail_all("second")
        _, after = calls.register()
        assert [str(future.exception(0)) for future in (before, after)] == ["first", "first"]


def test_a_profile_that_no_rank_can_take_fails_no_rank(make: Make, tmp_path: Path) -> None:
    executor = make(2)
    order = ProfileOrder("p", "operators", str(tmp_path), 5.0, 10)
    assert executor.profile(order).result(WAIT_SECONDS) is False
    assert executor.profile(None, is_look=True).result(WAIT_SECONDS) is False
    assert executor.profile(None).result(WAIT_SECONDS) is False
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))


def test_a_profile_of_stacks_is_taken_by_every_rank(make: Make, tmp_path: Path) -> None:
    executor = make(2)
    assert executor.profile(ProfileOrder("p", "samples", str(tmp_path), 0.2, 10)).result(WAIT_SECONDS) is True
    deadline = time.monotonic() + WAIT_SECONDS
    while executor.profile(None, is_look=True).result(WAIT_SECONDS) or len(list(tmp_path.glob("Worker*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))
