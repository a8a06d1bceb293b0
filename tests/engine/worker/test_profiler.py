"""A worker's operators are captured step by step, within bounds, and nothing it computes changes."""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chrome_trace import check_trace, read_trace
from default_model import default_config
from plan_driver import Driver

from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import ModelRunnerOutput, WorkerMoments
from vllm_obs.engine.profile_captures import Capture, CaptureSite
from vllm_obs.engine.profile_order import OPERATORS, CaptureEnd, ProfileOrder
from vllm_obs.engine.worker import profiler as profiler_module
from vllm_obs.engine.worker.worker import Worker

NUM_BLOCKS = 64
ROLE = "Worker_TP0"
TRACE, TABLE = f"{ROLE}.trace.json.gz", f"{ROLE}.operators.json"
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    config = default_config()
    worker = Worker(replace(config, model=replace(config.model, max_model_len=256)))
    worker.load_model()
    worker.initialize_cache(NUM_BLOCKS)
    worker.warm_up()
    yield worker
    worker.shutdown()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + WAIT_SECONDS
    names = ("profile writer", "Timer")
    while any(thread.name.startswith(names) for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begin(worker: Worker, directory: Path, steps: int = 100, seconds: float = 60.0, **more: Any) -> Capture:
    """A capture of that worker, begun."""
    order = ProfileOrder("p", OPERATORS, str(directory), seconds, steps, **more)
    capture = worker.profile_kinds[OPERATORS](order, CaptureSite(ROLE, os.getpid(), 0))
    capture.start()
    return capture


def end_of(capture: Capture) -> CaptureEnd:
    deadline = time.monotonic() + WAIT_SECONDS
    while capture.end is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return capture.end


def table_in(directory: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((directory / TABLE).read_text())
    return table


class Served:
    """Sequences on the worker, and the moments of their steps."""

    def __init__(self, worker: Worker) -> None:
        self.moments: list[WorkerMoments] = []
        self.driver = Driver(worker, NUM_BLOCKS, worker.config.cache.block_size, seed=3)
        for place in range(3):
            sampling = SamplingSpec(temperature=0.8, seed=place, top_p=0.9)
            self.driver.add(str(place), list(range(5 + place, 30 + place)), sampling, 12)

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            output: ModelRunnerOutput = self.driver.run(dict.fromkeys(self.driver.unfinished(), 16))
            self.moments += output.moments

    def finish(self) -> dict[str, list[int]]:
        outputs = self.driver.run_all()
        self.driver.run({})
        return outputs


def test_the_table_sums_to_the_recorded_time_and_the_trace_is_one(worker: Worker, tmp_path: Path) -> None:
    alone = Served(worker).finish()
    served = Served(worker)
    capture = begin(worker, tmp_path, steps=8)
    served.run(8)
    end = end_of(capture)
    assert (end.num_steps, end.files, end.error) == (8, [TRACE, TABLE], "")
    assert served.finish() == alone, "a capture changes nothing that is computed"

    table = table_in(tmp_path)
    forward = sum(each.forwarded_at - each.prepared_at for each in served.moments) / 1e9
    steps = sum(each.sampled_at - each.received_at for each in served.moments) / 1e9
    of_forward = sum(row["self_seconds"] for row in table["operators"] if row["phase"] == "forward")
    of_steps = sum(row["self_seconds"] for row in table["operators"])
    assert (table["num_steps"], table["first_step"], table["last_step"]) == (8, 1, 8)
    assert table["ended_by"] == "steps"
    assert table["forward_seconds"] == pytest.approx(forward)
    assert of_forward == pytest.approx(forward, rel=0.01)
    assert of_steps == pytest.approx(steps, rel=0.01)

    slices = check_trace(read_trace(tmp_path / TRACE))
    names = {event["name"] for event in slices}
    assert {f"engine.step {step}" for step in range(1, 9)} <= names
    assert {"prepare", "forward", "sample", "aten::embedding"} <= names
    by_step = [event for event in slices if event["cat"] == "step"]
    assert by_step[0]["args"] == {"step": 1, "rows": 3, "tokens": 48}
    assert [round(event["ts"] * 1000) for event in by_step] == [each.received_at for each in served.moments]


def test_compiled_kernels_have_names_and_layers(worker: Worker, tmp_path: Path) -> None:
    if not isinstance(worker.model, profiler_module.WatchedModel):
        pytest.skip("this machine has no compiled kernels")
    served = Served(worker)
    capture = begin(worker, tmp_path, steps=4, options=("shapes",))
    served.run(4)
    end_of(capture)
    served.finish()
    table = table_in(tmp_path)
    num_layers = worker.config.model.architecture.num_layers
    calls = {row["operator"]: row for row in table["operators"] if row["kind"] == "kernel"}
    assert {"attention", "linear.gate_up", "linear.down", "norm.input", "rotate", "linear.lm_head"} <= set(calls)
    assert len(table["layers"]) == num_layers
    in_forward = [row for row in table["operators"] if row["operator"] == "attention"]
    assert sum(row["num_calls"] for row in in_forward) == 4 * num_layers
    assert table["accounted_share"] > 0.5
    decodes = [row for row in table["operators"] if row["operator"] == "linear.qkv" and row["shapes"] == "3 rows"]
    assert [row["num_calls"] for row in decodes] == [2 * num_layers]


def test_an_idle_capture_ends_by_its_seconds(worker: Worker, tmp_path: Path) -> None:
    end = end_of(begin(worker, tmp_path, seconds=0.05))
    assert (end.num_steps, end.files, end.error) == (0, [TRACE, TABLE], "")
    table = table_in(tmp_path)
    assert (table["ended_by"], table["num_steps"], table["operators"]) == ("seconds", 0, [])
    assert check_trace(read_trace(tmp_path / TRACE)) == []


def test_an_order_ends_it_and_a_second_one_changes_nothing(worker: Worker, tmp_path: Path) -> None:
    served = Served(worker)
    capture = begin(worker, tmp_path)
    served.run(2)
    begun_at = time.monotonic()
    capture.stop()
    assert time.monotonic() - begun_at < 2.0 * 3
    capture.stop()
    served.run(1)
    assert end_of(capture).num_steps == 2
    assert table_in(tmp_path)["ended_by"] == "order"
    served.finish()


def test_steps_are_let_go_by_before_it_begins(worker: Worker, tmp_path: Path) -> None:
    served = Served(worker)
    capture = begin(worker, tmp_path, steps=2, delay_steps=3)
    served.run(6)
    end_of(capture)
    served.finish()
    assert (table_in(tmp_path)["first_step"], table_in(tmp_path)["last_step"]) == (4, 5)


def test_it_ends_when_it_holds_too_many_events(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler_module, "MAX_EVENTS", 10)
    served = Served(worker)
    capture = begin(worker, tmp_path)
    served.run(3)
    served.finish()
    assert end_of(capture).num_steps == 1
    assert table_in(tmp_path)["ended_by"] == "events"


def test_a_step_that_fails_is_not_captured_and_the_next_one_is(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(worker)
    capture = begin(worker, tmp_path)
    served.run(1)
    with monkeypatch.context() as patched:
        patched.setattr(worker.runner, "forward", _fail)
        with pytest.raises(ZeroDivisionError):
            served.driver.run({})  # without rows: the driver's books stay right
        patched.setattr(worker.runner, "begin", _fail)
        with pytest.raises(ZeroDivisionError):
            served.run(1)
    assert capture.end is None
    capture.stop()
    assert end_of(capture).num_steps == 1


def test_a_profile_that_breaks_fails_no_step(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = Served(worker).finish()
    served = Served(worker)
    monkeypatch.setattr(profiler_module.TorchCycle, "end", _fail)
    monkeypatch.setattr(profiler_module.TorchCycle, "begin", lambda self: None)
    with monkeypatch.context() as patched:
        patched.setattr(profiler_module.TorchCycle, "end", lambda self: [])
        capture = begin(worker, tmp_path)
    assert served.finish() == alone
    end = end_of(capture)
    assert (end.num_steps, end.files) == (0, [])
    assert end.error == "ZeroDivisionError while a step was captured"
    assert "is given up" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_gone_is_an_error_of_the_profile(worker: Worker, tmp_path: Path) -> None:
    end = end_of(begin(worker, tmp_path / "gone", seconds=0.01))
    assert (end.files, end.error) == ([], "FileNotFoundError: No such file or directory")


@pytest.mark.parametrize("options", [("stack",), ("memory", "flops"), ("uncompressed",)])
def test_torchs_own_options_are_recorded(worker: Worker, tmp_path: Path, options: tuple[str, ...]) -> None:
    served = Served(worker)
    capture = begin(worker, tmp_path, steps=3, options=options)
    served.run(3)
    end = end_of(capture)
    served.finish()
    assert end.error == ""
    slices = check_trace(read_trace(tmp_path / end.files[0]))
    table = table_in(tmp_path)
    total = sum(row["self_seconds"] for row in table["operators"])
    assert total == pytest.approx(table["step_seconds"], rel=0.01)
    assert end.files[0].endswith(".json") == ("uncompressed" in options)
    assert any(event["cat"] == "python" for event in slices) == ("stack" in options)
    assert any("allocated_bytes" in row for row in table["operators"]) == ("memory" in options)


def _fail(*_: object) -> None:
    raise ZeroDivisionError
