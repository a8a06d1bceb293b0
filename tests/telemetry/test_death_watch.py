"""Which processes of a run ended without closing their rings, told once, with what was seen of them before."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllm_obs.telemetry.death_watch import MAX_WATCHED, MEMORY_NS, DeathWatch, End, rings_of
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.memory_limits import MemoryLimits, MemoryReader
from vllm_obs.telemetry.open_rings import MAX_RINGS

NOW = 5_000


class FakeMemory(MemoryReader):
    """One control group that all are in, whose kills the test counts."""

    def __init__(self, group: Path) -> None:
        super().__init__()
        self.group = group
        group.mkdir()
        self.kill(0)

    def kill(self, num_so_far: int) -> None:
        (self.group / "memory.oom_control").write_text(f"oom_kill {num_so_far}\n")
        self.num = num_so_far

    def membership(self, pid: int) -> str:
        return "0::/group"

    def read(self, pid: int) -> MemoryLimits | None:
        return MemoryLimits(str(self.group), self.num, 1000, 900, 1000, 800, 0)


@contextmanager
def recording_process(run_dir: Path, role: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process with a ring, which it closes when its input ends."""
    script = (
        "import sys; from pathlib import Path; from vllm_obs.telemetry.flight_recorder import FlightRecorder\n"
        f"recorder = FlightRecorder(Path({str(run_dir)!r}) / '{role}.ring', '{role}')\n"
        "print('ready', flush=True); sys.stdin.read(); recorder.close()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.fixture
def memory(tmp_path: Path) -> FakeMemory:
    return FakeMemory(tmp_path / "group")


@pytest.fixture
def watch(tmp_path: Path, memory: FakeMemory) -> Iterator[DeathWatch]:
    watch = DeathWatch(tmp_path, memory)
    yield watch
    watch.close()


def test_one_that_is_killed_is_told_once_with_its_status_and_its_memory(
    tmp_path: Path, watch: DeathWatch, memory: FakeMemory
) -> None:
    memory.kill(4)
    with recording_process(tmp_path, "EngineCore_DP0") as process:
        assert watch.look(NOW) == []
        assert watch.memory_of(process.pid) == memory.read(process.pid)
        assert watch.look(NOW + MEMORY_NS - 1) == []
        memory.kill(5)
        process.kill()
        watch.await_end("EngineCore", 30)
        (end,) = watch.look(NOW)
        before = MemoryLimits(str(memory.group), 4, 1000, 900, 1000, 800, 0)
        assert end == End("EngineCore_DP0", process.pid, -signal.SIGKILL, NOW, False, False, before, 1)
        assert watch.look(NOW) == []
        assert watch.memory_of(process.pid) is None


def test_one_that_closes_its_ring_is_not_told(tmp_path: Path, watch: DeathWatch) -> None:
    with recording_process(tmp_path, "Worker_TP0") as process:
        assert watch.look(NOW) == []
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        assert watch.look(NOW) == []


def test_of_one_that_was_dead_before_nothing_is_known_but_that(tmp_path: Path, watch: DeathWatch) -> None:
    recorder = FlightRecorder(tmp_path / "living", "APIServer_0", 4096)
    shutil.copy(recorder.path, tmp_path / "APIServer_0.ring")
    recorder.close()
    (tmp_path / "broken.ring").write_bytes(b"x" * 5000)
    (end,) = watch.look(NOW)
    assert (end.role, end.exit_code, end.memory, end.is_recorded) == ("APIServer_0", None, None, False)
    assert [ring.is_alive for ring in rings_of(tmp_path)] == [False]


def test_what_it_remembers_is_bounded(tmp_path: Path, watch: DeathWatch) -> None:
    for number in range(MAX_WATCHED + 10):
        recorder = FlightRecorder(tmp_path / "living", "Worker_TP0", 4096)
        shutil.copy(recorder.path, tmp_path / f"{number}.ring")
        recorder.close()
    assert [len(watch.look(NOW)) for _ in range(3)] == [MAX_RINGS, MAX_WATCHED + 10 - MAX_RINGS, 0]
    assert len(watch._told) == MAX_WATCHED
