"""The in-process executor: start-up in phases, finished futures, errors kept in them, steps recorded."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_decoder import FakeDecoder, fake_config
from start_phases import outermost

from vllm_obs.engine import faults
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.executor.uniproc import UniprocExecutor
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.worker import worker as worker_module
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import (
    MemorySampled,
    ProcessPhase,
    ProfileBegun,
    ProfileEnded,
    WorkerLimits,
    WorkerStep,
)

PHASES = ["import torch", "load weights", "kv cache", "warm-up"]


@pytest.fixture
def recorder() -> MemoryRecorder:
    return MemoryRecorder()


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, recorder: MemoryRecorder) -> Iterator[UniprocExecutor]:
    monkeypatch.setattr(worker_module, "load_model", lambda *_: FakeDecoder())
    executor = UniprocExecutor(fake_config(num_gpu_blocks_override=50), recorder)
    yield executor
    executor.shutdown()


def plan_of(step: int, name: str, num_tokens: int) -> StepPlan:
    new = NewRow(name, np.arange(num_tokens, dtype=np.int32), num_tokens, SamplingSpec(temperature=0.0), [3, 1], 0)
    return StepPlan(step, [new], [], [], [], [], [num_tokens], [])


def test_start_up_sizes_the_cache_and_is_timed(executor: UniprocExecutor, recorder: MemoryRecorder) -> None:
    capacity = executor.initialize()
    assert capacity == KVCapacity(50, 32, capacity.available_bytes, "--num-gpu-blocks-override")
    assert [name for name, _ in executor.startup_phases()] == PHASES
    recorded = outermost([record for record in recorder.records if isinstance(record, ProcessPhase)])
    assert [record.phase for record in recorded] == PHASES
    assert [seconds for _, seconds in executor.startup_phases()] == [
        (record.ended_at - record.begun_at) / 1e9 for record in recorded
    ]


def test_memory_is_recorded_after_the_imports_and_at_the_end(
    executor: UniprocExecutor, recorder: MemoryRecorder
) -> None:
    executor.initialize()
    imported, placed = (record for record in recorder.records if isinstance(record, MemorySampled))
    assert (imported.phase, imported.parts, imported.part_bytes[0] > 0) == ("import torch", ["libraries"], True)
    assert (placed.phase, "activations" in placed.parts, "objects" in placed.parts) == ("warm-up", True, True)
    assert len(placed.ranges) == len(placed.parts) == len(placed.part_bytes)


def test_limits_are_recorded_once_within_the_warm_up(executor: UniprocExecutor, recorder: MemoryRecorder) -> None:
    executor.initialize()
    (limits,) = (record for record in recorder.records if isinstance(record, WorkerLimits))
    (warm_up,) = (r for r in recorder.records if isinstance(r, ProcessPhase) and r.phase == "warm-up")
    assert (limits.rank, limits.dtype) == (0, "float32")
    assert limits.flops_per_second > 0
    assert limits.bytes_per_second > 0
    assert warm_up.begun_at < limits.measured_at < warm_up.ended_at


def test_a_step_answers_in_finished_futures_and_is_recorded(
    executor: UniprocExecutor, recorder: MemoryRecorder
) -> None:
    executor.initialize()
    forward = executor.execute_model(plan_of(5, "a", 6))
    assert forward.done()
    assert forward.result() is None
    answer = executor.sample_tokens(None)
    assert answer.done()
    output = answer.result()
    assert (output.step, output.request_ids) == (5, ["a"])
    (moments,) = output.moments
    recorded = [record for record in recorder.records if isinstance(record, WorkerStep)]
    assert recorded == [WorkerStep(5, *moments, num_tokens=6, num_rows=1)]


@pytest.mark.parametrize("site", ["execute_model", "sample_tokens"])
def test_an_error_of_a_step_is_in_its_future_and_the_next_step_runs(
    executor: UniprocExecutor, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    executor.initialize()
    monkeypatch.setattr(faults, "_FAULTS", {site: ("raise", "")})
    forward = executor.execute_model(plan_of(1, "a", 3))
    answer = executor.sample_tokens(None)
    failed = {"execute_model": forward, "sample_tokens": answer}[site]
    assert isinstance(failed.exception(), faults.InjectedFaultError)
    assert answer.exception() is not None
    monkeypatch.setattr(faults, "_FAULTS", {})
    executor.execute_model(plan_of(2, "b", 3)._replace(released_ids=["a"])).result()
    assert executor.sample_tokens(None).result().request_ids == ["b"]


def test_what_a_failed_step_releases_is_released(
    executor: UniprocExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.initialize()
    executor.execute_model(plan_of(1, "a", 3)).result()
    executor.sample_tokens(None).result()
    monkeypatch.setattr(faults, "_FAULTS", {"execute_model": ("raise", "")})
    forward = executor.execute_model(StepPlan(2, [], [], [], [], [], [], ["a"]))
    assert isinstance(forward.exception(), faults.InjectedFaultError)
    assert executor.worker.runner.input_batch.num_rows == 0


def test_a_start_that_cannot_be_raises_its_cause(
    executor: UniprocExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> FakeDecoder:
        raise ConfigError("no such weights")

    monkeypatch.setattr(worker_module, "load_model", refuse)
    with pytest.raises(ConfigError, match="no such weights"):
        executor.initialize()


def test_shutdown_may_come_twice_or_before_the_start(executor: UniprocExecutor) -> None:
    executor.shutdown()
    executor.initialize()
    executor.shutdown()
    executor.shutdown()


def test_a_profile_of_the_steps_is_recorded_with_its_files(
    executor: UniprocExecutor, recorder: MemoryRecorder, tmp_path: Path
) -> None:
    executor.initialize()
    assert executor.profile(ProfileOrder("p", "operators", str(tmp_path), 30.0, 1)).result()
    executor.execute_model(plan_of(5, "a", 6)).result()
    executor.sample_tokens(None).result()
    deadline = time.monotonic() + 30
    while executor.profile(None, is_look=True).result():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (begun,), (ended,) = recorder.of(ProfileBegun), recorder.of(ProfileEnded)
    assert isinstance(begun, ProfileBegun)
    assert isinstance(ended, ProfileEnded)
    assert (begun.profile, begun.role, begun.rank, begun.max_steps) == ("p", "Worker_TP0", 0, 1)
    assert (ended.num_steps, ended.error) == (1, "")
    assert sorted(ended.files) == sorted(path.name for path in tmp_path.iterdir())
