"""Live worker processes whose shared memory is broken under them: a named end within a bound, never a token."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest
from fake_executor import FakeExecutor, make_request, tiny_config
from process_watch import gone

from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.executor import commands, shm_queue
from vllm_obs.engine.executor.commands import WorkerStepError
from vllm_obs.engine.executor.multiproc import MultiprocExecutor
from vllm_obs.engine.executor.shm_queue import ShmQueueWriter
from vllm_obs.engine.executor.shm_ring import QueueHandle, ShmQueueError, ShmRing
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.telemetry.recorder import MemoryRecorder

pytestmark = pytest.mark.usefixtures("child_modules")

WAIT_SECONDS = 30.0
SEEN_SECONDS = 3.0
"""Three times the promised second."""


@pytest.fixture
def executor() -> Iterator[MultiprocExecutor]:
    """Two ranks over the fake model."""
    config = replace(tiny_config(), parallel=ParallelConfig("mp", 2))
    made = MultiprocExecutor(config, MemoryRecorder(), "fake_worker_process")
    try:
        made.initialize()
        yield made
    finally:
        made.shutdown()


def plan_for(request_id: str, step: int = 1) -> StepPlan:
    message = make_request(request_id, [1, 2, 3])
    row = NewRow(request_id, message.prompt_token_ids, 3, message.sampling, [0], 0)
    return StepPlan(step, [row], [], [], [], [], [3], [])


def run(executor: MultiprocExecutor, plan: StepPlan) -> ModelRunnerOutput:
    executed, sampled = executor.execute_model(plan), executor.sample_tokens(None)
    assert executed.result(WAIT_SECONDS) is None
    return sampled.result(WAIT_SECONDS)


def torn_payload(ring: ShmRing, sequence: int) -> None:
    ring.payload(sequence, 16)[13] ^= 0xFF


def torn_header(ring: ShmRing, sequence: int) -> None:
    ring.words[ring.slot_word(sequence) + 2] ^= 1


def too_long(ring: ShmRing, sequence: int) -> None:
    ring.words[ring.slot_word(sequence) + 1] = ring.slot_bytes + 1


def jump(ring: ShmRing, sequence: int) -> None:
    ring.words[ring.slot_word(sequence)] = sequence + 7


DAMAGES = {"torn payload": torn_payload, "torn header": torn_header, "too long": too_long, "sequence jump": jump}
REASONS = dict(zip(DAMAGES, ("checksum", "checksum", "length", "sequence"), strict=True))


def damage_next(handle: QueueHandle, sequence: int, damage: Callable[[ShmRing, int], None]) -> None:
    """Break the slot that holds the message of that number."""
    ring = ShmRing(handle)
    damage(ring, sequence)
    ring.close()


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_broken_queue_of_plans_ends_its_ranks_with_the_reason(executor: MultiprocExecutor, kind: str) -> None:
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))
    pids = [child.pid for child in executor._children]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that none reads before the damage is done
    sequence = executor._plans._sequence
    executed, sampled = executor.execute_model(plan_for("b", step=2)), executor.sample_tokens(None)
    damage_next(executor._queues.plans, sequence, DAMAGES[kind])
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert_dead(executed, sampled, rf"Worker_TP\d exited with code 70: shared-memory queue: {REASONS[kind]}: ")
    assert all(gone(pid, SEEN_SECONDS) for pid in pids)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_broken_queue_of_replies_fails_every_call_with_the_rank(
    executor: MultiprocExecutor, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = executor._replies._readers[0]
    take, damaged = reader._has_next, []

    def damage_first() -> bool:
        """As the writer's memory would be if it had died while it wrote."""
        sequence = reader._sequence
        if not damaged and reader._ring.words[reader._ring.slot_word(sequence)] == sequence + 1:
            damaged.append(sequence)
            damage_next(executor._queues.replies[0], sequence, DAMAGES[kind])
        return take()

    monkeypatch.setattr(reader, "_has_next", damage_first)
    executed, sampled = executor.execute_model(plan_for("a")), executor.sample_tokens(None)
    reason = rf"Worker_TP0 sent a reply that cannot be read: shared-memory queue: {REASONS[kind]}: "
    assert_dead(executed, sampled, reason)


def assert_dead(executed: Future[None], sampled: Future[ModelRunnerOutput], words: str) -> None:
    begun = time.monotonic()
    for future in (executed, sampled):
        with pytest.raises(EngineDeadError, match=words):
            future.result(WAIT_SECONDS)
    assert time.monotonic() - begun < SEEN_SECONDS


def test_a_worker_killed_in_the_middle_of_an_answer_is_named_and_nothing_of_it_is_taken(
    executor: MultiprocExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two slots of an answer is there, the second never comes."""
    monkeypatch.setattr(shm_queue, "CUT_TIMEOUT_SECONDS", 0.5)
    worker = executor._children[0]
    os.kill(worker.pid, signal.SIGSTOP)
    executed, sampled = executor.execute_model(plan_for("a")), executor.sample_tokens(None)
    ring = ShmQueueWriter(executor._queues.replies[0])
    encoded = commands.encode(executor._encoder, commands.CallFailed(1, "x" * (2 * ring._ring.slot_bytes)))
    body = memoryview(shm_queue.join_frames(encoded))
    ring._publish(body[: ring._ring.slot_bytes], len(body) - ring._ring.slot_bytes)
    ring.close()
    os.kill(worker.pid, signal.SIGKILL)
    assert_dead(executed, sampled, "Worker_TP0 was killed by SIGKILL")


def test_a_plan_too_large_to_send_is_refused_and_the_ranks_go_on(
    executor: MultiprocExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_queue, "MAX_MESSAGE_BYTES", 1000)
    large = plan_for("a" * 2000)
    with pytest.raises(ShmQueueError, match="the limit is 1000"):
        executor.execute_model(large).result(WAIT_SECONDS)
    with pytest.raises(WorkerStepError, match="there is no plan to sample"):
        executor.sample_tokens(None).result(WAIT_SECONDS)
    assert run(executor, plan_for("b", step=2)) == FakeExecutor(8).run(plan_for("b", step=2))


def test_an_answer_too_large_to_send_fails_its_step_and_the_rank_goes_on(
    monkeypatch: pytest.MonkeyPatch, child_modules: None
) -> None:
    monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
    monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", "large_answer=raise:large")
    config = replace(tiny_config(), parallel=ParallelConfig("mp", 1))
    executor = MultiprocExecutor(config, MemoryRecorder(), "fake_worker_process")
    try:
        executor.initialize()
        executor.execute_model(plan_for("large")).result(WAIT_SECONDS)
        with pytest.raises(WorkerStepError, match=r"size: an array of \d+ bytes; the limit is"):
            executor.sample_tokens(None).result(WAIT_SECONDS)
        release = StepPlan(2, [], [], [], [], [], [], ["large"])
        assert executor.execute_model(release).result(WAIT_SECONDS) is None
        assert run(executor, plan_for("a", step=3)) == FakeExecutor(8).run(plan_for("a", step=3))
    finally:
        executor.shutdown()
