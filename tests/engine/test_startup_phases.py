"""A start is told in phases that touch, with the parts that were named within them and what they used."""

import time

from vllm_obs.engine.process_clock import process_started_at
from vllm_obs.engine.startup_phases import MAX_PARTS, ProcessMeter, StartupPhases, Usage, startup_part
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProcessPhase


class ScriptedMeter:
    """Each time it is asked a second of CPU time more has gone than the time before, and a page was read."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> Usage:
        self.taken += 1
        return Usage(self.taken, 4096)


def test_each_phase_begins_where_the_one_before_ended() -> None:
    recorder, moments = MemoryRecorder(), iter([2_000_000_000, 2_500_000_000, 9_000_000_000])
    meter = ScriptedMeter()
    phases = StartupPhases("EngineCore_DP0", recorder, 500_000_000, lambda: next(moments), meter)
    assert [phases.end("imports"), phases.end("load"), phases.end("rest")] == [1.5, 0.5, 6.5]
    assert list(recorder.records) == [
        ProcessPhase("EngineCore_DP0", "imports", 500_000_000, 2_000_000_000, 1, 4096),
        ProcessPhase("EngineCore_DP0", "load", 2_000_000_000, 2_500_000_000, 2, 4096),
        ProcessPhase("EngineCore_DP0", "rest", 2_500_000_000, 9_000_000_000, 3, 4096),
    ]


def names(recorder: MemoryRecorder) -> list[str]:
    return [record.phase for record in recorder.records if isinstance(record, ProcessPhase)]


def test_parts_are_recorded_before_the_phase_they_are_in() -> None:
    recorder = MemoryRecorder()
    with startup_part("before any phase"):
        pass
    phases = StartupPhases("EngineCore_DP0", recorder, time.monotonic_ns())
    with startup_part("outer"), startup_part("inner"):
        pass
    phases.end("load")
    phases.end("rest")
    assert names(recorder) == ["inner", "outer", "load", "rest"]
    inner, outer, load, _ = (record for record in recorder.records if isinstance(record, ProcessPhase))
    assert load.begun_at <= outer.begun_at <= inner.begun_at <= inner.ended_at <= outer.ended_at <= load.ended_at


def test_parts_that_nobody_records_are_bounded() -> None:
    recorder = MemoryRecorder()
    phases = StartupPhases("EngineCore_DP0", recorder, time.monotonic_ns())
    for number in range(1000):
        with startup_part(str(number)):
            pass
    phases.end("load")
    assert len(names(recorder)) == MAX_PARTS + 1


def test_what_was_used_is_counted_from_the_time_before() -> None:
    since_start, from_now = ProcessMeter(since_start=True), ProcessMeter()
    begun_at = time.process_time()
    while time.process_time() < begun_at + 0.02:
        pass
    assert from_now.take().cpu_seconds >= 0.02
    assert since_start.take().cpu_seconds >= begun_at
    assert 0 <= from_now.take().cpu_seconds < 10


def test_the_start_of_this_process_is_behind_us() -> None:
    started_at = process_started_at()
    assert time.monotonic_ns() - 3600 * 10**9 < started_at < time.monotonic_ns()
    assert abs(process_started_at() - started_at) < 10**9
