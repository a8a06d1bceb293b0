"""A ring between processes: read while it is written at full speed, and after its writer was killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import vllm_obs
from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.records import FrameDropped, Record, StepAnswered, StepPlanned
from vllm_obs.telemetry.ring_reader import RingReader

DEADLINE_SECONDS = 30.0
NUM_RECORDS = 100_000

FAST_WRITER = f"""
import sys
from pathlib import Path
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import FrameDropped
recorder = FlightRecorder(Path(sys.argv[1]), "EngineCore_DP0", 256 * 1024)
print("open", flush=True)
texts = ["w" * (number * 37 % 300) for number in range(101)]
for number in range({NUM_RECORDS}):
    recorder.record(FrameDropped(texts[number % 101], "decode", number))
"""

STEPPING_WRITER = """
import sys
from pathlib import Path
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import StepAnswered, StepPlanned
recorder = FlightRecorder(Path(sys.argv[1]), "EngineCore_DP0")
ids = [f"{row:032x}-0" for row in range(256)]
ones, none = [1] * 256, []
step = 0
print("open", flush=True)
while True:
    recorder.begin_step(step)
    columns = (ids, ones, [70_000] * 256, ones, *[none] * 6)
    recorder.record(StepPlanned(step, 1, 2, *columns, "kv_blocks", 256, 9, 1, 2, 3))
    recorder.record(StepAnswered(step, 3, 4, 5, ids, ones, 0))
    step += 1
"""


@contextmanager
def writing(program: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs this program on this ring; it has opened the ring when this begins."""
    environment = {**os.environ, "PYTHONPATH": str(Path(vllm_obs.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process
        finally:
            process.kill()


def test_a_reader_beside_a_fast_writer_sees_whole_records_in_order(ring_path: Path) -> None:
    decoder, seen, last = RecordDecoder(), 0, -1
    deadline = time.monotonic() + DEADLINE_SECONDS
    with writing(FAST_WRITER, ring_path) as process, RingReader(ring_path) as reader:
        ended = False
        while not ended:
            assert time.monotonic() < deadline
            ended = process.poll() is not None
            for frame in reader.read(500):
                record = decoder.decode(frame.payload)
                assert isinstance(record, FrameDropped)
                assert record.dropped_at == frame.sequence > last
                assert record.where == "w" * (frame.sequence % 101 * 37 % 300)
                last = frame.sequence
                seen += 1
        while frames := reader.read():
            seen += len(frames)
        assert process.returncode == 0
        assert seen + reader.num_lost == NUM_RECORDS == reader.header().sequence
        assert (reader.num_torn, seen > 0) == (0, True)


def test_the_last_steps_of_a_killed_process_are_readable(ring_path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    with writing(STEPPING_WRITER, ring_path) as process, RingReader(ring_path) as reader:
        while reader.header().step < 1000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert reader.is_writer_alive()
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        assert not reader.is_writer_alive()
        header = reader.header()
        records = read_all(reader)
    assert (header.pid, header.closed_at) == (process.pid, 0)
    planned = [record.step for record in records if isinstance(record, StepPlanned)]
    answered = [record.step for record in records if isinstance(record, StepAnswered)]
    assert planned == list(range(planned[0], planned[-1] + 1))
    assert answered == list(range(answered[0], answered[-1] + 1))
    assert len(answered) >= 100
    assert header.step - 1 <= answered[-1] <= planned[-1] <= header.step
    assert len(records) + reader.num_lost in (header.sequence, header.sequence + 1)


def read_all(reader: RingReader) -> list[Record]:
    decoder, records = RecordDecoder(), []
    while frames := reader.read():
        records += [decoder.decode(frame.payload) for frame in frames]
    assert all(record is not None for record in records)
    return [record for record in records if record is not None]
