"""Synthetic ranks under the real executors: in process, and as two processes of which one can be stopped."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.executor.factory import make_executor
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.engine.synthetic.worker import AVAILABLE_BYTES
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProcessPhase, WorkerStep

WAIT_SECONDS = 30.0
STALL_SECONDS = 0.5


def started(run_dir: Path | None = None, num_ranks: int = 1) -> tuple[Executor, MemoryRecorder]:
    """An initialized executor of that many ranks, in process where there is one."""
    args = EngineArgs(
        load_format="synthetic",
        max_model_len=256,
        num_gpu_blocks_override=64,
        model_loader_extra_config={"base_seconds": 0.002, "num_ranks": num_ranks},
        distributed_executor_backend="mp" if num_ranks > 1 else "uni",
    )
    config = replace(args.create_engine_config(), run_dir=str(run_dir or ""))
    recorder = MemoryRecorder()
    executor = make_executor(config, recorder)
    capacity = executor.initialize()
    assert (capacity.num_blocks, capacity.available_bytes) == (64, AVAILABLE_BYTES)
    return executor, recorder


@pytest.fixture
def two_ranks(run_base: Path) -> Iterator[Executor]:
    executor, _ = started(run_base, num_ranks=2)
    yield executor
    executor.shutdown()


def ask(executor: Executor, step: int) -> "Future[ModelRunnerOutput]":
    """Run a fresh sequence of eight tokens as this step."""
    row = NewRow(f"r-{step}", np.arange(8, dtype=np.int32), 8, SamplingSpec(seed=step), [0], 0)
    executor.execute_model(StepPlan(step, [row], [], [], [], [], [8], [f"r-{step - 1}"]))
    return executor.sample_tokens(None)


def ranks() -> list[psutil.Process]:
    """The rank processes, in order."""
    return sorted(psutil.Process().children(), key=lambda process: process.cmdline())


def test_one_rank_lives_in_the_engine_and_records_its_steps() -> None:
    executor, recorder = started()
    output = ask(executor, 1).result(WAIT_SECONDS)
    executor.shutdown()
    (step,) = recorder.of(WorkerStep)
    assert (step.step, step.rank, step.num_tokens, step.num_rows) == (1, 0, 8, 1)  # type: ignore[attr-defined]
    assert output.request_ids == ["r-1"]
    phases: list[Any] = recorder.of(ProcessPhase)
    names = [phase.phase for phase in phases]
    assert names[0] == "make worker"
    assert "import torch" not in names


def test_a_stopped_rank_holds_the_step_up_until_it_goes_on(two_ranks: Executor) -> None:
    assert ask(two_ranks, 1).result(WAIT_SECONDS).request_ids == ["r-1"]
    stopped = ranks()[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        held_up = ask(two_ranks, 2)
        time.sleep(STALL_SECONDS)
        assert not held_up.done()
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert held_up.result(WAIT_SECONDS).request_ids == ["r-2"]


def test_ranks_load_no_torch(two_ranks: Executor) -> None:
    assert ask(two_ranks, 1).result(WAIT_SECONDS)
    found = ranks()
    assert len(found) == 2
    for process in found:
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
