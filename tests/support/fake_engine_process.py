"""An engine process over the fake executor: `python -m fake_engine_process`; real wire, threads and core."""

from typing import Any

from fake_executor import FakeExecutor

from vllm_obs.engine.child_main import run_child
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.engine.executor.multiproc import MultiprocExecutor
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.plan import StepPlan
from vllm_obs.engine.process import run_engine
from vllm_obs.telemetry.recorder import MemoryRecorder, Recorder
from vllm_obs.telemetry.records import FrameDropped

NUM_BLOCKS = 64


class RecordingCore(EngineCore):
    """A real core that also answers what the main loop recorded."""

    def __init__(self, config: VllmConfig, executor: Executor, recorder: MemoryRecorder) -> None:
        super().__init__(config, executor, recorder)
        self._recorder = recorder

    def call_utility(self, method: str, args: list[Any]) -> Any:
        if method == "dropped_frames":
            return [record.reason for record in self._recorder.of(FrameDropped)]
        return super().call_utility(method, args)


def make_fake_core(config: VllmConfig, recorder: Recorder, report_failure: Any) -> EngineCore:
    """A real core, over real worker processes with the fake model where `mp` is configured.

    In-process, a forward pass stops at the fault site "fake_execute" for each of its rows.
    """
    assert isinstance(recorder, MemoryRecorder)
    if config.parallel.distributed_executor_backend == "mp":
        workers = MultiprocExecutor(config, recorder, "fake_worker_process")
        workers.on_failure(report_failure)
        return RecordingCore(config, workers, recorder)
    executor = FakeExecutor(NUM_BLOCKS, config.cache.block_size)
    executor.before_execute = _maybe_fail
    return RecordingCore(config, executor, recorder)


def _maybe_fail(plan: StepPlan) -> None:
    for request_id in plan.row_ids:
        maybe_fault("fake_execute", request_id)


if __name__ == "__main__":
    run_child(lambda owner: run_engine(owner, make_fake_core))
