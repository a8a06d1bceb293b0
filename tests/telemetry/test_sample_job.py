"""A sampling runs in its own thread from order to file; without an order there is none; its errors are said."""

import os
import threading
from pathlib import Path

from sample_sets import waiting_thread

from vllm_obs.telemetry.sample_file import read_samples
from vllm_obs.telemetry.sample_job import SampleJob, SampleOrder
from vllm_obs.telemetry.sample_set import IN_PROCESS


def order_in(directory: Path, seconds: float = 0.1) -> SampleOrder:
    return SampleOrder("p1", str(directory), seconds, 100)


def test_without_a_start_there_is_not_even_a_thread(tmp_path: Path) -> None:
    before = threading.enumerate()
    job = SampleJob(order_in(tmp_path), "Observer")
    assert threading.enumerate() == before
    assert job.end is None


def test_it_writes_its_file_and_calls_once(tmp_path: Path) -> None:
    called_in: list[str] = []
    job = SampleJob(order_in(tmp_path), "Observer", lambda: called_in.append(threading.current_thread().name))
    with waiting_thread("waits"):
        job.start()
        assert job.join(10)
    end = job.end
    assert end is not None
    samples = read_samples(tmp_path / "Observer.samples.json")
    assert end == (samples.num_samples, samples.ended_at, end.written_at, ["Observer.samples.json"], "")
    assert end.ended_at <= end.written_at
    assert called_in == ["stack sampler"]
    assert (samples.profile, samples.role, samples.pid) == ("p1", "Observer", os.getpid())
    assert (samples.sampler, samples.rate_hz) == (IN_PROCESS, 100)
    names = {thread.name for thread in samples.threads}
    assert {"waits", "MainThread"} <= names
    assert "stack sampler" not in names


def test_one_that_is_stopped_writes_what_it_has(tmp_path: Path) -> None:
    job = SampleJob(order_in(tmp_path, seconds=60), "Observer")
    job.start()
    job.stop()
    job.stop()
    assert job.join(6)
    assert job.end is not None
    assert job.end.files == ["Observer.samples.json"]


def test_what_goes_wrong_is_said_and_goes_no_further(tmp_path: Path) -> None:
    called: list[int] = []
    job = SampleJob(order_in(tmp_path / "missing"), "Observer", lambda: called.append(1))
    job.start()
    assert job.join(10)
    assert job.end is not None
    assert (job.end.num_samples, job.end.files, called) == (0, [], [1])
    assert job.end.error.startswith("FileNotFoundError")
