"""A start is told in phases that touch."""

import time

from vllm_obs.engine.process_clock import process_started_at
from vllm_obs.engine.startup_phases import StartupPhases
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProcessPhase


def test_each_phase_begins_where_the_one_before_ended() -> None:
    recorder, moments = MemoryRecorder(), iter([2_000_000_000, 2_500_000_000, 9_000_000_000])
    phases = StartupPhases("EngineCore_DP0", recorder, 500_000_000, lambda: next(moments))
    assert [phases.end("imports"), phases.end("load"), phases.end("rest")] == [1.5, 0.5, 6.5]
    assert list(recorder.records) == [
        ProcessPhase("EngineCore_DP0", "imports", 500_000_000, 2_000_000_000),
        ProcessPhase("EngineCore_DP0", "load", 2_000_000_000, 2_500_000_000),
        ProcessPhase("EngineCore_DP0", "rest", 2_500_000_000, 9_000_000_000),
    ]


def test_the_start_of_this_process_is_behind_us() -> None:
    started_at = process_started_at()
    assert time.monotonic_ns() - 3600 * 10**9 < started_at < time.monotonic_ns()
    assert abs(process_started_at() - started_at) < 10**9
