"""An engine process over the fake executor: `python -m fake_engine_process`; real wire, threads and core."""

from typing import Any

from fake_executor import FakeExecutor

from vllm_obs.engine.child_main import run_child
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.process import run_engine
from vllm_obs.telemetry.recorder import Recorder

NUM_BLOCKS = 64


def make_fake_core(config: VllmConfig, recorder: Recorder, report_failure: Any) -> EngineCore:
    """A real core; each forward pass stops at the fault site "fake_execute"."""
    executor = FakeExecutor(NUM_BLOCKS, config.cache.block_size)
    executor.before_execute = lambda plan: maybe_fault("fake_execute")
    return EngineCore(config, executor, recorder)


if __name__ == "__main__":
    run_child(lambda owner: run_engine(owner, make_fake_core))
