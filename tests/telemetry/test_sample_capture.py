"""The Observer samples itself or has py-spy sample all, records it from its loop, and ends last."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from sample_sets import engine_samples

from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded
from vllm_obs.telemetry.sample_capture import SampleCapture
from vllm_obs.telemetry.sample_choice import SamplerChoice
from vllm_obs.telemetry.sample_file import read_samples, write_samples
from vllm_obs.telemetry.sample_job import SampleOrder
from vllm_obs.telemetry.sample_merge import MERGED, read_table
from vllm_obs.telemetry.sample_pyspy import Target
from vllm_obs.telemetry.sample_set import IN_PROCESS, PY_SPY

SPEEDSCOPE = """{"shared": {"frames": [{"name": "main", "file": "a.py", "line": 3}]},
"profiles": [{"name": "Thread 7", "samples": [[0], [0]], "weights": [0.01, 0.01]}]}"""
ITSELF = SamplerChoice(IN_PROCESS, "", [], "as was asked for")
OWN = Target("Observer", os.getpid())


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await play

    asyncio.run(bounded())


def program(directory: Path, script: str) -> str:
    path = directory / "program"
    path.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    path.chmod(0o700)
    return str(path)


def by_py_spy(directory: Path, script: str, *targets: Target) -> SamplerChoice:
    return SamplerChoice(PY_SPY, program(directory, script), [OWN, *targets], "py-spy looks")


async def nobody_else() -> list[str]:
    return []


def ends(recorder: MemoryRecorder) -> list[ProfileEnded]:
    return [record for record in recorder.records if isinstance(record, ProfileEnded)]


def test_the_observer_samples_itself(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    capture = SampleCapture(SampleOrder("p1", str(tmp_path), 0.1, 100), ITSELF, recorder.record)
    capture.begin()
    run(capture.run(nobody_else))
    begun, ended = recorder.records
    assert isinstance(begun, ProfileBegun)
    assert isinstance(ended, ProfileEnded)
    assert begun == ("p1", "samples", *OWN, -1, 0, 0.1, begun.begun_at)
    assert ended[:5] == begun[:5]
    assert (ended.files, ended.error) == (["Observer.samples.json", *MERGED], "")
    assert read_samples(tmp_path / "Observer.samples.json").num_samples == ended.num_samples > 0
    assert begun.begun_at < ended.ended_at <= ended.written_at


def test_its_end_comes_when_the_others_files_are_merged(tmp_path: Path) -> None:
    recorder = MemoryRecorder()

    async def others_over() -> list[str]:
        assert ends(recorder) == []
        samples = engine_samples()
        write_samples(tmp_path / f"{samples.role}.samples.json", samples)
        return ["Worker_TP1"]

    capture = SampleCapture(SampleOrder("p1", str(tmp_path), 0.1, 100), ITSELF, recorder.record)
    capture.begin()
    run(capture.run(others_over, "0.1"))
    assert len(ends(recorder)) == 1
    table = read_table(tmp_path)
    assert table is not None
    assert [role["role"] for role in table.pop("roles")] == ["EngineCore", "Observer"]
    assert table == {
        "profile": "p1",
        "sampler": IN_PROCESS,
        "says": "as was asked for",
        "missing": ["Worker_TP1"],
    }


def test_py_spy_samples_all_side_by_side(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    targets = (Target("EngineCore_DP0", 7), Target("Worker_TP1", 8))
    choice = by_py_spy(tmp_path, f"cat > \"$last\" <<'E'\n{SPEEDSCOPE}\nE", *targets)
    capture = SampleCapture(SampleOrder("p1", str(tmp_path), 1), choice, recorder.record)
    capture.begin()
    begun = [record for record in recorder.records if isinstance(record, ProfileBegun)]
    assert [(record.role, record.pid, record.rank) for record in begun] == [
        (*OWN, -1),
        ("EngineCore_DP0", 7, -1),
        ("Worker_TP1", 8, 1),
    ]
    run(capture.run(nobody_else))
    assert {(end.role, end.pid, end.rank, end.num_samples) for end in ends(recorder)[:2]} == {
        ("EngineCore_DP0", 7, -1, 2),
        ("Worker_TP1", 8, 1, 2),
    }
    own = ends(recorder)[2]
    assert (own.role, own.files) == ("Observer", ["Observer.samples.json", *MERGED])
    assert read_samples(tmp_path / "Worker_TP1.samples.json").sampler == PY_SPY
    assert "Worker;MainThread" not in (tmp_path / "merged.collapsed.txt").read_text()
    assert "Worker;thread 7;main (a.py:3) 2\n" in (tmp_path / "merged.collapsed.txt").read_text()


def test_what_py_spy_cannot_see_is_said_and_the_rest_is_merged(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    choice = by_py_spy(tmp_path, "echo 'Error: no such process' >&2; exit 1", Target("Worker_TP1", 8))
    capture = SampleCapture(SampleOrder("p1", str(tmp_path), 1), choice, recorder.record)
    run(capture.run(nobody_else))
    worker, own = ends(recorder)
    assert worker.error == own.error == "py-spy ended with code 1: Error: no such process"
    assert (worker.files, own.files) == ([], list(MERGED))


def test_py_spy_ends_with_the_observer(tmp_path: Path) -> None:
    choice = by_py_spy(tmp_path, f'echo $$ > "{tmp_path}/pid"; exec sleep 60')
    capture = SampleCapture(SampleOrder("p1", str(tmp_path), 30), choice, MemoryRecorder().record)

    async def play() -> None:
        sampling = asyncio.create_task(capture.run(nobody_else))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        sampling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sampling

    run(play())
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    order = SampleOrder("p1", str(tmp_path / "missing"), 0.1, 100)
    run(SampleCapture(order, ITSELF, recorder.record).run(nobody_else))
    (end,) = ends(recorder)
    assert (end.files, end.error.partition(":")[0]) == ([], "FileNotFoundError")
