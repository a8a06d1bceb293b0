"""The executor for one device: its worker lives in the EngineCore's own process."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.executor.done_future import DoneFuture
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.executor.late_answer import LateAnswer
from vllm_obs.engine.executor.step_record import step_record, told_by
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_captures import CaptureSite, ProcessCaptures
from vllm_obs.engine.profile_kinds import worker_kinds
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.startup_phases import StartupPhases, startup_part
from vllm_obs.engine.worker.limits import record_limits
from vllm_obs.engine.worker.memory_parts import memory_parts
from vllm_obs.engine.worker.torch_import import import_torch
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.recorder import ProcessRecorder

if TYPE_CHECKING:
    from vllm_obs.engine.synthetic.worker import SyntheticWorker
    from vllm_obs.engine.worker.worker import Worker

T = TypeVar("T")

ROLE = "Worker_TP0"


class UniprocExecutor:
    """Every call runs here and now, so a future is done when it is returned; it holds the result or the error.

    With async scheduling that is so of all but a step's answer: what it waits for is only queued on the device by
    then, and whoever asks for the result waits.
    """

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder) -> None:
        self._config = config
        self._recorder = recorder
        self._worker: Worker | SyntheticWorker | None = None
        self._phases: list[tuple[str, float]] = []
        self._sizes = (0, 0)
        self._captures: ProcessCaptures | None = None

    @property
    def worker(self) -> "Worker | SyntheticWorker":
        """The worker, once `initialize` made it."""
        assert self._worker is not None, "initialize comes first"
        return self._worker

    def initialize(self) -> KVCapacity:
        """Import torch, load the weights, size and allocate the cache, warm up. ConfigError when it cannot be."""
        self._begun = StartupPhases(ROLE, self._recorder, time.monotonic_ns())
        loading = "make worker" if self._config.model.is_synthetic else "import torch"
        self._worker = self._timed(loading, Activity.STARTING, self._make_worker)
        memory = MemorySamples(ROLE, self._recorder)
        memory.added(loading, "libraries")
        self._timed("load weights", Activity.LOADING_MODEL, self.worker.load_model)
        capacity = self._timed("kv cache", Activity.SIZING_CACHE, self._allocate_cache)
        self._timed("warm-up", Activity.WARMING_UP, lambda: self._warm_up(memory))
        return capacity

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Run the plan's forward pass."""
        self._sizes = (plan.num_tokens, plan.num_rows)
        return DoneFuture(lambda: self.worker.execute_model(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Sample the rows of the plan executed last; the worker's step is recorded with its answer."""
        if not self._config.scheduler.async_scheduling:
            return DoneFuture(lambda: self._launch(masks)())
        launched = DoneFuture(lambda: self._launch(masks))
        if launched.exception() is None:
            return LateAnswer(launched.result())
        return DoneFuture(lambda: launched.result()())

    def profile(self, order: ProfileOrder | None, is_look: bool = False) -> Future[bool]:
        """Have the worker begin or end a profile of its steps, here and now."""
        if self._captures is None:
            site = CaptureSite(ROLE, os.getpid(), 0)
            self._captures = ProcessCaptures(site, self._recorder, worker_kinds(self.worker))
        captures = self._captures
        return DoneFuture(lambda: captures.obey(order, is_look))

    def startup_phases(self) -> list[tuple[str, float]]:
        """(name, seconds) of what `initialize` did, in order."""
        return list(self._phases)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """An in-process worker cannot die alone, so the callback is never called."""

    def shutdown(self) -> None:
        """Let the worker's memory go; idempotent."""
        if self._worker is not None:
            self._worker.shutdown()

    def _make_worker(self) -> "Worker | SyntheticWorker":
        if self._config.model.is_synthetic:
            from vllm_obs.engine.synthetic.build import make_synthetic_worker

            return make_synthetic_worker(self._config, 0, self._recorder.advance)
        # Here, so that the import of torch is a phase of start-up and costs only who runs a model.
        import_torch(self._config.model.device)
        with startup_part("import worker"):
            from vllm_obs.engine.worker.worker import Worker

        return Worker(self._config, on_layer=self._recorder.advance)

    def _allocate_cache(self) -> KVCapacity:
        from vllm_obs.engine.worker.memory import size_kv_cache

        capacity = size_kv_cache(self._config, self.worker.kv_block_bytes(), self.worker.available_kv_bytes())
        self.worker.initialize_cache(capacity.num_blocks)
        return capacity

    def _warm_up(self, memory: MemorySamples) -> None:
        self.worker.warm_up()
        with startup_part("record memory"):
            parts = memory_parts(self._worker)
            memory.placed("warm-up", *parts)
        with startup_part("measure limits"):
            record_limits(self._worker, 0, parts.ranges.get("weights", []), self._recorder)

    def _launch(self, masks: GrammarMasks | None) -> Callable[[], ModelRunnerOutput]:
        """Queue the sampling; what fetches the answer and records the step, with what is known of it only now."""
        worker, sizes = self.worker, self._sizes
        flight: Any = worker.launch_sampling(masks)
        told = told_by(worker)

        def answer() -> ModelRunnerOutput:
            output: ModelRunnerOutput = worker.answer(flight)
            for moments in output.moments:
                self._recorder.record(step_record(output.step, moments, sizes, told))
            return output

        return answer

    def _timed(self, phase: str, activity: Activity, act: Callable[[], T]) -> T:
        self._recorder.doing(activity)
        result = act()
        self._recorder.advance()
        self._phases.append((phase, self._begun.end(phase)))
        return result
