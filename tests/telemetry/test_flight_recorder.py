"""The recorder shows its process in the header, drops what it must and counts it, and never raises."""

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vllm_obs
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder, open_recorder
from vllm_obs.telemetry.recorder import NullRecorder
from vllm_obs.telemetry.records import BlocksChanged, FrameDropped
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.view import RecordsLost

MakeRecorder = Callable[..., FlightRecorder]
MakeReader = Callable[..., RingReader]
MakeDropped = Callable[..., FrameDropped]


def test_the_header_says_who_writes(make_recorder: MakeRecorder, make_reader: MakeReader) -> None:
    before = time.monotonic_ns(), time.time_ns()
    recorder = make_recorder(capacity_bytes=5000)
    after = time.monotonic_ns(), time.time_ns()
    header = make_reader().header()
    assert (header.role, header.pid, header.capacity) == ("EngineCore_DP0", os.getpid(), 8192)
    assert (header.started_at, header.wall_at) == (recorder.started_at, recorder.wall_at)
    assert before[0] <= header.started_at <= after[0]
    assert before[1] <= header.wall_at <= after[1]
    assert (header.sequence, header.cursor, header.closed_at) == (0, 0, 0)
    assert header.activity is Activity.STARTING


def test_the_header_says_what_the_process_is_doing(make_recorder: MakeRecorder, make_reader: MakeReader) -> None:
    recorder, reader = make_recorder(), make_reader()
    recorder.heartbeat(12_345)
    recorder.begin_step(7)
    recorder.doing(Activity.SCHEDULING)
    for _ in range(3):
        recorder.advance()
    header = reader.header()
    assert (header.heartbeat_at, header.step, header.progress) == (12_345, 7, 3)
    assert header.activity is Activity.SCHEDULING
    assert header.started_at <= header.activity_at <= time.monotonic_ns()


def test_an_activity_of_a_newer_writer_is_unknown() -> None:
    assert Activity.of(250) is Activity.UNKNOWN
    assert {Activity.of(activity) for activity in Activity} == set(Activity)


def test_a_role_longer_than_its_room_is_cut(ring_path: Path) -> None:
    recorder = FlightRecorder(ring_path, "é" * 100, 4096)
    with RingReader(ring_path) as reader:
        assert reader.header().role == "é" * 32
    recorder.close()


def test_records_that_cannot_be_encoded_are_counted_and_lost(
    make_recorder: MakeRecorder, make_reader: MakeReader, dropped: MakeDropped
) -> None:
    recorder, reader = make_recorder(), make_reader()
    recorder.record(dropped(3))
    recorder.record(FrameDropped("\ud800", "decode", 1))
    recorder.record(FrameDropped("w", "decode", 2**64))
    recorder.record(("no", "record"))  # type: ignore[arg-type]
    recorder.record(None)  # type: ignore[arg-type]
    recorder.record(dropped(4))
    assert [frame.sequence for frame in reader.read()] == [0, 5]
    assert (reader.header().num_unencodable, reader.num_lost) == (4, 4)


def test_a_record_that_was_dropped_is_missed_in_its_place(
    make_recorder: MakeRecorder, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = make_recorder()
    tail = RingTail(ring_path.parent)
    too_large, unencodable = dropped(1, 4096), FrameDropped("\ud800", "decode", 1)
    for record in (dropped(2), too_large, unencodable, dropped(3), too_large):
        recorder.record(record)
    assert [fact for _, fact in tail.drain()] == [dropped(2), RecordsLost(2), dropped(3), RecordsLost(1)]
    recorder.record(unencodable)
    cursors = tail.cursors()
    tail.close()
    recorder.record(dropped(4))
    tail = RingTail(ring_path.parent, cursors)
    assert [fact for _, fact in tail.drain()] == [RecordsLost(1), dropped(4)]
    tail.close()


def test_records_too_large_for_the_ring_are_counted_and_lost(
    make_recorder: MakeRecorder, make_reader: MakeReader, dropped: MakeDropped
) -> None:
    recorder, reader = make_recorder(), make_reader()
    for length in range(180, 260):
        recorder.record(dropped(length, length))
    header, frames = reader.header(), reader.read()
    assert (header.sequence, reader.num_lost + len(frames)) == (80, 80)
    assert 0 < header.num_oversized < reader.num_lost
    assert max(len(frame.payload) for frame in frames) == 4096 // 16 - 16
    recorder.record(BlocksChanged(1, ["a"], [list(range(1_000_000))], [[]], [0]))
    assert reader.header().num_oversized == header.num_oversized + 1
    assert len(recorder._scratch) == 0


def test_a_closed_recorder_drops_in_silence(
    make_recorder: MakeRecorder, make_reader: MakeReader, dropped: MakeDropped
) -> None:
    recorder, reader = make_recorder(), make_reader()
    recorder.record(dropped(0))
    recorder.close()
    recorder.record(dropped(1))
    recorder.record(FrameDropped("\ud800", "decode", 1))
    recorder.heartbeat(1)
    recorder.begin_step(1)
    recorder.doing(Activity.WAITING)
    recorder.advance()
    recorder.close()
    header = reader.header()
    assert (header.sequence, header.step, header.progress) == (1, 0, 0)
    assert header.started_at < header.closed_at
    assert not reader.is_writer_alive()


def test_the_file_never_grows(make_recorder: MakeRecorder, ring_path: Path, dropped: MakeDropped) -> None:
    recorder = make_recorder()
    for number in range(2000):
        recorder.record(dropped(number, number % 100))
    assert ring_path.stat().st_size == 4096 + 4096
    assert ring_path.stat().st_blocks * 512 >= 4096 + 4096
    assert ring_path.stat().st_mode & 0o777 == 0o600


def test_the_ring_of_a_dead_process_keeps_its_records(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, dropped: MakeDropped
) -> None:
    for number in range(3):
        recorder = make_recorder()
        recorder.record(dropped(number))
    names = sorted(path.name for path in ring_path.parent.iterdir())
    assert names == ["EngineCore_DP0.1.ring", "EngineCore_DP0.2.ring", "EngineCore_DP0.ring"]
    payloads = [make_reader(ring_path.parent / name).read()[0].payload for name in names]
    assert [payload[-1] for payload in payloads] == [0, 1, 2]


def test_no_room_for_the_ring_is_a_named_error(ring_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RingError, match="no room for 8192 bytes of ring"):
        FlightRecorder(ring_path, "EngineCore_DP0", 4096)
    assert list(ring_path.parent.iterdir()) == []


def test_a_process_without_a_ring_goes_on(ring_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        recorder = open_recorder(ring_path.parent / "absent" / "a.ring", "EngineCore_DP0")
    assert isinstance(recorder, NullRecorder)
    assert "goes on without a flight recorder: cannot create the ring" in caplog.text
    recorder.doing(Activity.WAITING)
    recorder.close()


def test_a_process_with_a_ring_writes_it(ring_path: Path, make_reader: MakeReader, dropped: MakeDropped) -> None:
    recorder = open_recorder(ring_path, "Worker_TP0", 4096)
    recorder.record(dropped(5))
    assert len(make_reader().read()) == 1
    recorder.close()


def test_recording_loads_no_exporter() -> None:
    program = (
        "import sys, vllm_obs.telemetry.flight_recorder, vllm_obs.telemetry.ring_reader\n"
        "heavy = {'prometheus_client', 'opentelemetry', 'streamlit', 'torch', 'numpy', 'asyncio'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    source = str(Path(vllm_obs.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
