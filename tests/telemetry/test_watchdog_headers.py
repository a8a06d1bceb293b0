"""The headers of a run's live processes are found, followed and let go of."""

import errno
import os
from pathlib import Path

import pytest

from vllm_obs.telemetry import open_rings
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.watchdog_headers import RunHeaders, engines_of
from vllm_obs.telemetry.watchdog_rule import ProcessLook


def ring(directory: Path, role: str) -> FlightRecorder:
    return FlightRecorder(directory / f"{role}.ring", role, 4096)


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_each_live_process_is_seen_with_its_words(tmp_path: Path) -> None:
    headers, writer = RunHeaders(tmp_path), ring(tmp_path, "Worker_TP3")
    writer.begin_step(7)
    writer.advance()
    writer.heartbeat(5)
    writer.doing(Activity.EXECUTING)
    (look,) = headers.look()
    assert (look.role, look.pid, look.rank) == ("Worker_TP3", os.getpid(), 3)
    assert (look.step, look.progress, look.heartbeat_at, look.activity) == (7, 1, 5, Activity.EXECUTING)
    writer.advance()
    assert headers.look() == [look._replace(progress=2)]
    headers.close()
    writer.close()


def test_one_that_ended_is_gone_and_one_that_replaces_it_is_seen(tmp_path: Path) -> None:
    headers = RunHeaders(tmp_path)
    num_before = num_open_files()
    first = ring(tmp_path, "EngineCore_DP0")
    (look,) = headers.look()
    first.close()
    assert headers.look() == []
    second = ring(tmp_path, "EngineCore_DP0")  # the first's file has another name from here on
    (again,) = headers.look()
    assert again.generation != look.generation
    second.close()
    for path in tmp_path.iterdir():
        path.unlink()
    assert headers.look() == []
    headers.close()
    assert num_open_files() == num_before


def test_what_is_no_ring_and_a_directory_that_is_not_there_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "APIServer_0.ring").write_bytes(b"x" * 9000)
    (tmp_path / ".Worker_TP0.ring.7").write_bytes(b"x")
    headers = RunHeaders(tmp_path)
    assert (headers.look(), headers.look()) == ([], [])
    headers.close()
    assert RunHeaders(tmp_path / "none").look() == []


def test_a_ring_that_cannot_be_opened_or_looked_at_for_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers, writer = RunHeaders(tmp_path), ring(tmp_path, "EngineCore_DP0")
    failures = [RingError("too many open files"), OSError(errno.ENOMEM, "no memory")]

    def fail_first(path: Path) -> RingReader:
        if failures:
            raise failures.pop()
        return RingReader(path)

    monkeypatch.setattr(open_rings, "RingReader", fail_first)
    assert [len(headers.look()) for _ in range(3)] == [0, 0, 1]
    with monkeypatch.context() as broken:
        broken.setattr(RingReader, "is_writer_alive", lambda reader: os.fstat(-1))
        assert headers.look() == []
    assert len(headers.look()) == 1
    headers.close()
    writer.close()


def test_no_more_rings_are_opened_than_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_rings, "MAX_RINGS", 3)
    writers = [ring(tmp_path, f"Worker_TP{rank}") for rank in range(5)]
    headers = RunHeaders(tmp_path)
    assert len(headers.look()) == 3
    headers.close()
    for writer in writers:
        writer.close()


def test_workers_are_given_to_their_engine() -> None:
    def look(role: str, rank: int = -1) -> ProcessLook:
        return ProcessLook(role, 1, rank, 1, 0, 0, 0, Activity.WAITING, 0)

    looks = [
        look("Worker_TP1", 1), look("Worker_TP0", 0), look("EngineCore_DP0"), look("APIServer_0"),
        look("EngineCore_DP1"), look("Worker_DP1_TP0", 0), look("Observer"), look("Worker_DP7_TP0", 0),
    ]  # fmt: skip
    assert [
        (engine.engine, engine.core.role, [worker.role for worker in engine.workers])
        for engine in engines_of(looks)
    ] == [
        ("0", "EngineCore_DP0", ["Worker_TP0", "Worker_TP1"]),
        ("1", "EngineCore_DP1", ["Worker_DP1_TP0"]),
    ]
