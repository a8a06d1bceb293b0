"""py-spy samples a process from outside, within a deadline; what it cannot do is said in words."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vllm_obs.telemetry import sample_pyspy
from vllm_obs.telemetry.sample_file import read_samples
from vllm_obs.telemetry.sample_job import SampleOrder
from vllm_obs.telemetry.sample_pyspy import Target, read_py_spy, sample_from_outside, why_not
from vllm_obs.telemetry.sample_set import PY_SPY, UNKNOWN, Frame, StackRun, ThreadSamples
from vllm_obs.telemetry.stacks import py_spy

TARGET = Target("Worker_TP0", 77)
CONTENT = {
    "shared": {
        "frames": [
            {"name": "main", "file": "vllm_obs/engine/process.py", "line": 3, "col": None},
            {"name": "wait", "file": "/elsewhere/lib/x/threading.py", "line": 9},
            {"name": "native", "file": None, "line": None},
        ]
    },
    "profiles": [
        {
            "type": "sampled",
            "name": 'Thread 77 "MainThread"',
            "samples": [[0, 1], [0, 1], [0, 2], [0, 1]],
            "weights": [0.01, 0.01, 0.01, 0.01],
        },
        {"type": "sampled", "name": "Thread 77", "samples": [], "weights": []},
        {"type": "sampled", "name": "Thread 78", "samples": [[1]], "weights": [0.01]},
        {"type": "sampled", "name": "odd", "samples": [], "weights": []},
    ],
}


def order_in(directory: Path, seconds: float = 1.0) -> SampleOrder:
    return SampleOrder("p1", str(directory), seconds, 100)


def program(directory: Path, script: str) -> str:
    """Something that is run in py-spy's place."""
    path = directory / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def napping() -> Iterator[subprocess.Popen[bytes]]:
    script = "import time\ndef nap():\n    print(1, flush=True)\n    time.sleep(60)\nnap()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_what_py_spy_writes_is_read_as_samples(tmp_path: Path) -> None:
    samples = read_py_spy(CONTENT, TARGET, order_in(tmp_path), (5, 9))
    assert (samples.role, samples.pid, samples.sampler, samples.profile) == ("Worker_TP0", 77, PY_SPY, "p1")
    assert (samples.begun_at, samples.ended_at, samples.rate_hz) == (5, 9, 100)
    assert samples.frames == [
        Frame("main", "vllm_obs/engine/process.py", 3),
        Frame("wait", "threading.py", 9),
        Frame("native", "", 0),
    ]
    assert samples.stacks == [[0, 1], [0, 2], [1]]
    assert samples.threads == [
        ThreadSamples(
            "MainThread",
            77,
            [
                StackRun(0, 2, 0.02, 0.0, UNKNOWN),
                StackRun(1, 1, 0.01, 0.0, UNKNOWN),
                StackRun(0, 1, 0.01, 0.0, UNKNOWN),
            ],
        ),
        ThreadSamples("MainThread", 77, []),
        ThreadSamples("thread 78", 78, [StackRun(2, 1, 0.01, 0.0, UNKNOWN)]),
        ThreadSamples("odd", 0, []),
    ]


def test_the_right_to_look_is_asked_of_the_kernel() -> None:
    assert why_not(os.getpid()) == ""
    assert why_not(2**22 + 1) == f"there is no process {2**22 + 1}"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'Error: Permission denied (os error 13)' >&2; exit 1", "code 1: Error: Permission denied"),
        ("exit 0", "py-spy ended with code 0: it gave no reason"),
        ('for last; do :; done; echo "{}" > "$last"', "what py-spy wrote cannot be read: KeyError"),
        ('for last; do :; done; echo "{" > "$last"', "what py-spy wrote cannot be read"),
    ],
)
def test_its_errors_are_said(tmp_path: Path, script: str, words: str) -> None:
    end = asyncio.run(sample_from_outside(program(tmp_path, script), TARGET, order_in(tmp_path)))
    assert words in end.error
    assert (end.num_samples, end.files) == (0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


def test_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    end = asyncio.run(sample_from_outside(str(tmp_path / "none"), TARGET, order_in(tmp_path)))
    assert "No such file" in end.error


def test_it_is_killed_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_pyspy, "GRACE_SECONDS", 0.3)
    hanging = program(tmp_path, f'echo $$ > "{tmp_path}/pid"; exec sleep 60')
    begun_at = time.monotonic()
    end = asyncio.run(sample_from_outside(hanging, TARGET, order_in(tmp_path, seconds=0.2)))
    assert time.monotonic() - begun_at < 3 * 10
    assert end.error == "py-spy was killed: not done 0.3 s after the 0.2 s it was to sample"
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_it_is_killed_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    hanging = program(tmp_path, f'echo $$ > "{tmp_path}/pid"; exec sleep 60')

    async def play() -> None:
        task = asyncio.create_task(sample_from_outside(hanging, TARGET, order_in(tmp_path, seconds=30)))
        async with asyncio.timeout(10):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_large_file_of_it_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_pyspy, "MAX_FILE_BYTES", 5)
    large = program(tmp_path, 'for last; do :; done; echo "{  } " > "$last"')
    end = asyncio.run(sample_from_outside(large, TARGET, order_in(tmp_path)))
    assert end.error == "py-spy wrote 6 bytes; the limit is 5"


def test_the_real_one_sees_where_a_process_waits(tmp_path: Path, napping: subprocess.Popen[bytes]) -> None:
    program = py_spy()
    if program is None or why_not(napping.pid):
        pytest.skip("py-spy is not here, or the kernel does not let it look")
    target = Target("Worker_TP0", napping.pid)
    end = asyncio.run(sample_from_outside(program, target, order_in(tmp_path)))
    assert end.error == ""
    samples = read_samples(tmp_path / "Worker_TP0.samples.json")
    assert (samples.num_samples, end.files) == (end.num_samples, ["Worker_TP0.samples.json"])
    (main,) = samples.threads
    assert (main.name, main.tid) == ("MainThread", napping.pid)
    functions = [[samples.frames[index].function for index in samples.stacks[run.stack]] for run in main.runs]
    assert ["<module>", "nap"] in functions
    assert [path.name for path in tmp_path.iterdir()] == ["Worker_TP0.samples.json"]
