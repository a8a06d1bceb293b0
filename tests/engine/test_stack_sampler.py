"""A process takes part in a profile of samples like in any other: it begins, ends by itself, and is recorded."""

import os
import threading
import time
from pathlib import Path

import pytest

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.profile_captures import CaptureSite, ProcessCaptures
from vllm_obs.engine.profile_kinds import PROCESS_KINDS
from vllm_obs.engine.profile_order import SAMPLES, ProfileOrder
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded
from vllm_obs.telemetry.sample_file import read_samples

SITE = CaptureSite("EngineCore_DP0", os.getpid())


def order_in(directory: Path, seconds: float = 0.1) -> ProfileOrder:
    return ProfileOrder("p1", SAMPLES, str(directory), seconds, steps=1)


def collected(captures: ProcessCaptures) -> None:
    """The main loop goes round until the capture is over."""
    deadline = time.monotonic() + 10
    while captures.is_under_way and time.monotonic() < deadline:
        time.sleep(0.01)
        captures.collect()
    assert not captures.is_under_way


def test_it_samples_writes_and_is_recorded_by_the_loop(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    captures = ProcessCaptures(SITE, recorder, PROCESS_KINDS)
    captures.start(order_in(tmp_path))
    collected(captures)
    begun, ended = recorder.records
    assert isinstance(begun, ProfileBegun)
    assert isinstance(ended, ProfileEnded)
    assert begun[:5] == ended[:5] == ("p1", SAMPLES, *SITE)
    samples = read_samples(tmp_path / "EngineCore_DP0.samples.json")
    assert (ended.num_samples, ended.files, ended.error) == (
        samples.num_samples,
        ["EngineCore_DP0.samples.json"],
        "",
    )
    assert begun.begun_at <= samples.begun_at <= samples.ended_at == ended.ended_at <= ended.written_at


def test_without_an_order_there_is_no_thread_of_it() -> None:
    ProcessCaptures(SITE, MemoryRecorder(), PROCESS_KINDS)
    assert "stack sampler" not in {thread.name for thread in threading.enumerate()}


def test_one_at_a_time_and_it_can_be_stopped(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    captures = ProcessCaptures(SITE, recorder, PROCESS_KINDS)
    captures.start(order_in(tmp_path, seconds=60))
    with pytest.raises(RequestError, match="p1 is still under way"):
        captures.start(order_in(tmp_path))
    captures.stop()
    collected(captures)
    (ended,) = recorder.of(ProfileEnded)
    assert isinstance(ended, ProfileEnded)
    assert ended.error == ""


def test_an_error_is_recorded_and_reaches_nothing_else(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    captures = ProcessCaptures(SITE, recorder, PROCESS_KINDS)
    directory = tmp_path / "gone"
    directory.mkdir()
    captures.start(order_in(directory))
    directory.rmdir()
    collected(captures)
    (ended,) = recorder.of(ProfileEnded)
    assert isinstance(ended, ProfileEnded)
    assert (ended.files, ended.error.partition(":")[0]) == ([], "FileNotFoundError")
