"""What threads of another process have used of a CPU is read from the kernel, and given to their samples."""

import os
import threading
import time
from pathlib import Path

import pytest
from sample_sets import waiting_thread, work_until_the_end

from vllm_obs.telemetry.sample_set import UNKNOWN, StackRun, ThreadSamples
from vllm_obs.telemetry.sample_thread_times import spread, thread_seconds

RUNS = [StackRun(0, 3, 0.03, 0.0, UNKNOWN), StackRun(1, 1, 0.01, 0.0, UNKNOWN)]


def test_each_threads_time_is_its_own() -> None:
    with waiting_thread("works", work_until_the_end) as works, waiting_thread("waits") as waits:
        deadline = time.monotonic() + 20
        while thread_seconds(os.getpid())[works.native_id or 0] < 0.1 and time.monotonic() < deadline:
            time.sleep(0.02)
        seconds = thread_seconds(os.getpid())
    assert seconds[works.native_id or 0] >= 0.1 > seconds[waits.native_id or 0]
    assert threading.get_native_id() in seconds


def test_of_a_process_that_is_gone_or_unreadable_nothing_is_known(tmp_path: Path) -> None:
    assert thread_seconds(1, tmp_path) == {}
    task = tmp_path / "7" / "task" / "8"
    task.mkdir(parents=True)
    (task / "stat").write_text("8 (python) S")
    assert thread_seconds(7, tmp_path) == {}


def test_the_time_is_spread_over_the_samples() -> None:
    thread = spread(ThreadSamples("main", 5, RUNS), {5: 1.0}, {5: 1.02})
    assert [run.cpu_seconds for run in thread.runs] == [pytest.approx(0.015), pytest.approx(0.005)]
    assert [run._replace(cpu_seconds=0.0) for run in thread.runs] == RUNS


def test_a_sample_gets_no_more_than_the_time_it_stands_for() -> None:
    thread = spread(ThreadSamples("main", 5, RUNS), {5: 1.0}, {5: 9.0})
    assert sum(run.cpu_seconds for run in thread.runs) == pytest.approx(0.04)


@pytest.mark.parametrize(("before", "after"), [({5: 1.0}, {5: 1.0}), ({}, {5: 1.0}), ({5: 1.0}, {}), ({}, {})])
def test_a_thread_that_waited_or_is_not_known_gets_none(before: dict[int, float], after: dict[int, float]) -> None:
    thread = ThreadSamples("main", 5, RUNS)
    assert spread(thread, before, after) == thread
