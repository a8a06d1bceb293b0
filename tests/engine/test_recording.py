"""The configuration chooses where a process's facts go."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from fake_executor import tiny_config

from vllm_obs.engine.config import ObservabilityConfig, VllmConfig
from vllm_obs.engine.recording import make_recorder
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.recorder import MemoryRecorder, NullRecorder
from vllm_obs.telemetry.ring_reader import RingReader


def config_of(recorder: Literal["ring", "memory", "null"], run_dir: Path | str = "") -> VllmConfig:
    return replace(tiny_config(), observability=ObservabilityConfig(recorder=recorder), run_dir=str(run_dir))


def test_a_ring_lies_in_the_run_directory_under_the_role(tmp_path: Path) -> None:
    recorder = make_recorder(config_of("ring", tmp_path), "Worker_TP1", 8192)
    assert isinstance(recorder, FlightRecorder)
    with RingReader(tmp_path / "Worker_TP1.ring") as reader:
        header = reader.header()
        assert (header.role, header.capacity) == ("Worker_TP1", 8192)
    recorder.close()


@pytest.mark.parametrize(
    ("asked", "kind"), [("ring", MemoryRecorder), ("memory", MemoryRecorder), ("null", NullRecorder)]
)
def test_without_a_run_directory_there_is_no_ring(asked: Literal["ring", "memory", "null"], kind: type) -> None:
    assert type(make_recorder(config_of(asked), "LLM")) is kind


def test_off_is_off_in_a_run_directory_too(tmp_path: Path) -> None:
    assert isinstance(make_recorder(config_of("null", tmp_path), "LLM"), NullRecorder)
    assert list(tmp_path.iterdir()) == []
