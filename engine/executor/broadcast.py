"""What executors of several ranks share: calls go to all of them, the output rank's reply is the answer."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_titles import engine_title
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
from vllm_obs.engine.executor.plan_stream import PlanWriter
from vllm_obs.engine.executor.shm_ring import ShmQueueError
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.wire import FrameEncoder
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.recorder import ProcessRecorder

LOAD_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.005


class BroadcastExecutor(ABC):
    """Broadcasts each call to all ranks and resolves it with the output rank's reply.

    A rank that dies, or ranks that disagree, fail every call with EngineDeadError and are reported once.
    """

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder) -> None:
        self._config = config
        self._recorder = recorder
        self._titles = [rank_title(rank, config) for rank in range(config.parallel.world_size)]
        self._calls = PendingCalls(self._titles, config.parallel.output_rank)
        self._encoder = FrameEncoder()
        self._told_plans = PlanWriter()
        self._phases: Phases = []
        self._callbacks: list[Callable[[str], None]] = []
        self._failure: str | None = None
        self._failing = threading.Lock()
        self._is_closing = False

    def initialize(self) -> KVCapacity:
        """Start the ranks, agree on the size of the cache, wait until all are ready. ConfigError, StartupError."""
        try:
            return self._start_ranks()
        except BaseException:
            self.shutdown()
            raise

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Send the plan to every rank."""
        return self._call(lambda call_id: self._told_plans.told(ExecuteModel(call_id, plan)))

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
        with self._failing:
            self._callbacks.append(callback)
            failure = self._failure
        if failure is not None:
            callback(failure)

    def shutdown(self) -> None:
        """End every rank within seconds; idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._calls.fail_all("the executor was shut down")
        self._close()

    @abstractmethod
    def _spawn_ranks(self) -> None:
        """Start every rank; each says LOADED when it has its weights. ConfigError, StartupError."""

    @abstractmethod
    def _messages(self, kind: str) -> list[Any]:
        """What each rank has said of that kind, None before it has. ConfigError or StartupError for an end."""

    @abstractmethod
    def _write(self, frames: list[Buffer]) -> None:
        """Send every rank a command. ShmQueueError; any other error fails the call only."""

    @abstractmethod
    def _close(self) -> None:
        """End every rank within seconds, and let go of all."""

    def _start_ranks(self) -> KVCapacity:
        from vllm_obs.engine.worker.memory import size_kv_cache

        self._spawn_ranks()
        loaded = self._gather(LOADED)
        block_bytes = max(answer[0] for answer in loaded)
        capacity = size_kv_cache(self._config, block_bytes, min(answer[1] for answer in loaded))
        self._write(encode(self._encoder, InitializeCache(capacity.num_blocks)))
        self._phases = _slowest([answer[2] for answer in loaded]) + _slowest(self._gather(READY))
        MemorySamples(engine_title(self._config.engine_index), self._recorder).added("make core", "libraries")
        return capacity

    def _gather(self, kind: str) -> list[Any]:
        """Every rank's message of that kind, with an eye on each of them."""
        deadline = time.monotonic() + LOAD_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            messages = self._messages(kind)
            if None not in messages:
                return messages
            time.sleep(_POLL_SECONDS)
        late = [title for title, message in zip(self._titles, messages, strict=True) if message is None]
        raise StartupError(f"{', '.join(late)} did not say {kind} within {LOAD_TIMEOUT_SECONDS:g} s")

    def _call(self, make: Callable[[int], Command]) -> Future[Any]:
        call_id, future = self._calls.register()
        if future.done():
            return future
        try:
            self._write(encode(self._encoder, make(call_id)))
        except Exception as error:
            self._told_plans.forget()
            if not isinstance(error, ShmQueueError) or error.is_refusal:
                self._calls.refuse(call_id, error)  # a call that stayed would be overdue, and end the engine
                return future
            who = self._titles[error.reader] if error.reader >= 0 else "the queue of plans"
            self._fail(f"{who} takes no plans: {error}")
        return future

    def _fail(self, cause: str) -> None:
        with self._failing:
            if self._is_closing or self._failure is not None:
                return
            self._failure = cause
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(cause)
        self._calls.fail_all(cause)


def _slowest(phases_by_rank: list[Phases]) -> Phases:
    """For each phase, in order, the longest time any rank took."""
    return [max(entries, key=lambda entry: entry[1]) for entries in zip(*phases_by_rank, strict=True)]
