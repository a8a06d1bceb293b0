"""The executor with one process for each rank: plans go out over shared memory, answers come back over it."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.executor.commands import (
    LOADED,
    Command,
    ExecuteModel,
    InitializeCache,
    Phases,
    Profile,
    SampleTokens,
    encode,
    rank_title,
)
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.executor.pending_calls import PendingCalls
from vllm_obs.engine.executor.reply_thread import ReplyThread
from vllm_obs.engine.executor.shm_queue import ShmQueueWriter
from vllm_obs.engine.executor.shm_ring import QueueHandle, ShmQueueError, create_queue
from vllm_obs.engine.executor.worker_process import WorkerSetup
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.wire import FrameEncoder
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.recorder import ProcessRecorder

WORKER_MODULE = "vllm_obs.engine.executor.worker_process"
ENGINE_ROLE = "EngineCore_DP0"
LOAD_TIMEOUT_SECONDS = 600.0
PLAN_TIMEOUT_SECONDS = 10.0
"""How long a plan may wait for a rank that does not read."""
STOP_TIMEOUT_SECONDS = 3.0
_POLL_SECONDS = 0.005


class Queues(NamedTuple):
    """One queue of plans that every rank reads, and one of replies from each; all without a name to clean up."""

    plans: QueueHandle
    replies: list[QueueHandle]

    @classmethod
    def create(cls, world_size: int) -> "Queues":
        """The queues for that many ranks."""
        plans = create_queue(tuple(os.eventfd(0) for _ in range(world_size)))
        woken_by = (os.eventfd(0),)
        return cls(plans, [create_queue(woken_by) for _ in range(world_size)])

    def close(self) -> None:
        """Close this process's descriptors."""
        for fd in {fd for queue in (self.plans, *self.replies) for fd in queue.fds}:
            os.close(fd)


class MultiprocExecutor:
    """Broadcasts each call to all ranks and resolves it with the output rank's reply.

    A rank that dies, or ranks that disagree, fail every call with EngineDeadError and are reported once.
    """

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder, module: str = WORKER_MODULE) -> None:
        self._config = config
        self._recorder = recorder
        self._module = module
        self._children: list[Child] = []
        self._calls = PendingCalls()
        self._encoder = FrameEncoder()
        self._phases: Phases = []
        self._callbacks: list[Callable[[str], None]] = []
        self._failure: str | None = None
        self._is_closing = False
        self._queues = Queues.create(config.parallel.world_size)
        self._plans = ShmQueueWriter(self._queues.plans)
        self._replies = ReplyThread(self._queues.replies, self._calls, self._fail)
        self._replies.start()

    def initialize(self) -> KVCapacity:
        """Start the ranks, agree on the size of the cache, wait until all are ready. ConfigError, StartupError."""
        try:
            return self._start_ranks()
        except BaseException:
            self.shutdown()
            raise

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Send the plan to every rank."""
        return self._call(lambda call_id: ExecuteModel(call_id, plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Have the plan executed last sampled."""
        return self._call(lambda call_id: SampleTokens(call_id, masks))

    def profile(self, order: ProfileOrder | None, is_look: bool = False) -> Future[bool]:
        """Tell every rank; what the output rank says of itself."""
        return self._call(lambda call_id: Profile(call_id, order, is_look))

    def startup_phases(self) -> list[tuple[str, float]]:
        """(name, seconds) of what the slowest rank did in each phase, in order."""
        return list(self._phases)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` from any thread when a rank dies; at once, if one has."""
        self._callbacks.append(callback)
        if self._failure is not None:
            callback(self._failure)

    def shutdown(self) -> None:
        """End every rank within seconds; idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._calls.fail_all("the executor was shut down")
        for child in self._children:
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        for child in self._children:
            child.stop(max(0.0, deadline - time.monotonic()))
        self._replies.stop()
        self._plans.close()
        self._queues.close()

    def _start_ranks(self) -> KVCapacity:
        from vllm_obs.engine.worker.memory import size_kv_cache

        for rank in range(self._config.parallel.world_size):
            child = self._spawn(rank)
            self._children.append(child)
            child.on_exit(self._fail)
        loaded = self._gather(LOADED)
        block_bytes = max(answer[0] for answer in loaded)
        capacity = size_kv_cache(self._config, block_bytes, min(answer[1] for answer in loaded))
        self._plans.write(encode(self._encoder, InitializeCache(capacity.num_blocks)), PLAN_TIMEOUT_SECONDS)
        self._phases = _slowest([answer[2] for answer in loaded]) + _slowest(self._gather(READY))
        MemorySamples(ENGINE_ROLE, self._recorder).added("make core", "libraries")
        return capacity

    def _spawn(self, rank: int) -> Child:
        replies = self._queues.replies[rank]
        setup = WorkerSetup(self._config, rank, self._queues.plans, replies)
        fds = [*self._queues.plans.fds, *replies.fds]
        return spawn(self._module, rank_title(rank), to_wire(setup), fds)

    def _gather(self, kind: str) -> list[Any]:
        """Every rank's message of that kind, with an eye on each of them."""
        deadline = time.monotonic() + LOAD_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            messages = [child.message(kind) for child in self._children]
            if None not in messages:
                return messages
            time.sleep(_POLL_SECONDS)
        late = [child.title for child, message in zip(self._children, messages, strict=True) if message is None]
        raise StartupError(f"{', '.join(late)} did not say {kind} within {LOAD_TIMEOUT_SECONDS:g} s")

    def _call(self, make: Callable[[int], Command]) -> Future[Any]:
        call_id, future = self._calls.register()
        if future.done():
            return future
        try:
            self._plans.write(encode(self._encoder, make(call_id)), PLAN_TIMEOUT_SECONDS)
        except WireError as error:
            self._calls.refuse(call_id, error)
        except ShmQueueError as error:
            if error.is_refusal:
                self._calls.refuse(call_id, error)
                return future
            who = rank_title(error.reader) if error.reader >= 0 else "the queue of plans"
            self._fail(f"{who} takes no plans: {error}")
        return future

    def _fail(self, cause: str) -> None:
        if self._is_closing or self._failure is not None:
            return
        self._failure = cause
        for callback in self._callbacks:
            callback(cause)
        self._calls.fail_all(cause)


def _slowest(phases_by_rank: list[Phases]) -> Phases:
    """For each phase, in order, the longest time any rank took."""
    return [max(entries, key=lambda entry: entry[1]) for entries in zip(*phases_by_rank, strict=True)]
