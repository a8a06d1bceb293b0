"""Prints what one record costs the process that writes it, and how many steps an engine's ring holds."""

import argparse
import tempfile
import timeit
from pathlib import Path

from vllm_obs.engine.core_keyframes import BLOCKS_A_TURN, REQUESTS_A_TURN, TURN_STEPS
from vllm_obs.telemetry.flight_recorder import ENGINE_RING_BYTES, FlightRecorder
from vllm_obs.telemetry.record_codec import RecordDecoder, encode
from vllm_obs.telemetry.records import (
    BlocksChanged,
    BlocksKeyframe,
    Record,
    RequestKeyframe,
    RequestTaken,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.ring import FRAME_BYTES, padded

NOW = 86_400 * 10**9
BLOCK_SIZE = 16
ROWS = (1, 64, 256)
BURST = 50
"""Calls in one timed round: short enough that some rounds are not interrupted on a busy machine."""


def request_id(number: int) -> str:
    """An id as the API server makes them: 32 hexadecimal digits and the sequence's index."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}-0"


def step_planned(num_rows: int) -> StepPlanned:
    """A step in which each row decodes one token and every sixteenth gets a block."""
    return StepPlanned(
        step=12_345,
        schedule_begun_at=NOW,
        schedule_ended_at=NOW + 50_000,
        request_ids=[request_id(row) for row in range(num_rows)],
        num_scheduled_tokens=[1] * num_rows,
        num_computed_tokens=[300 + 7 * row for row in range(num_rows)],
        num_new_blocks=[int(row % BLOCK_SIZE == 0) for row in range(num_rows)],
        admitted_ids=[],
        admitted_cached_tokens=[],
        resumed_ids=[],
        preempted_ids=[],
        left_out_ids=[],
        left_out_reasons=[],
        head_reason="max_num_seqs",
        num_running=num_rows,
        num_waiting=12,
        num_free_blocks=3000,
        num_cached_blocks=2000,
        num_active_blocks=1200,
    )


def step_records(num_rows: int) -> list[Record]:
    """All that an engine with its worker in the same process records in such a step, without keyframes."""
    planned = step_planned(num_rows)
    changed_ids = planned.request_ids[::BLOCK_SIZE]
    num_changed = len(changed_ids)
    allocated = [[row + 1000] for row in range(num_changed)]
    changed = BlocksChanged(planned.step, changed_ids, allocated, [[]] * num_changed, [0] * num_changed)
    answered = StepAnswered(planned.step, NOW, NOW, NOW, planned.request_ids, [1] * num_rows, 0)
    worker = WorkerStep(planned.step, 0, NOW, NOW, NOW, NOW, NOW, num_rows, num_rows)
    return [planned, changed, worker, answered]


def keyframe_records(num_rows: int) -> list[Record]:
    """What such an engine adds in every TURN_STEPS-th step."""
    blocks = BlocksKeyframe(12_345, 64, [1] * BLOCKS_A_TURN, [bytes(8)] * BLOCKS_A_TURN)
    tables = [
        RequestKeyframe(12_345, request_id(row), True, list(range(20)), 300, 200, 100)
        for row in range(min(num_rows, REQUESTS_A_TURN))
    ]
    return [blocks, *tables]


def microseconds(recorder: FlightRecorder, records: list[Record], repeat: int) -> float:
    """The least time of `repeat` rounds for writing these records once, in microseconds."""

    def write() -> None:
        for record in records:
            recorder.record(record)

    return min(timeit.repeat(write, number=BURST, repeat=repeat)) / BURST * 1e6


def decode_microseconds(record: Record, repeat: int) -> float:
    """The least time for turning a payload into its record again, in microseconds."""
    decoder, payload = RecordDecoder(), encode(record)
    return min(timeit.repeat(lambda: decoder.decode(payload), number=BURST, repeat=repeat)) / BURST * 1e6


def frame_bytes(record: Record) -> int:
    """What a record takes in the ring."""
    return FRAME_BYTES + padded(len(encode(record)))


def main() -> None:
    """Print one line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where the ring lies (default: the temporary directory)")
    parser.add_argument("--repeat", type=int, default=1000, help="timed rounds; the least counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        recorder = FlightRecorder(Path(directory) / "EngineCore_DP0.ring", "EngineCore_DP0")
        taken = RequestTaken(request_id(1), 0, NOW, NOW, 200, 128, 0)
        named: list[tuple[str, Record]] = [("RequestTaken", taken)]
        named += [(f"StepPlanned, {rows} rows", step_planned(rows)) for rows in ROWS]
        for name, record in named:
            written = microseconds(recorder, [record], options.repeat)
            decoded = decode_microseconds(record, options.repeat)
            print(f"{name:24} {written:7.2f} us  {frame_bytes(record):6d} bytes  decode {decoded:7.2f} us")
        for rows in ROWS:
            records, turn = step_records(rows), keyframe_records(rows)
            written = microseconds(recorder, records, options.repeat)
            written += microseconds(recorder, turn, options.repeat) / TURN_STEPS
            size = sum(map(frame_bytes, records)) + sum(map(frame_bytes, turn)) // TURN_STEPS
            held = ENGINE_RING_BYTES // size
            print(f"whole step, {rows:3d} rows     {written:7.2f} us  {size:6d} bytes  {held} steps in the ring")
        recorder.close()


if __name__ == "__main__":
    main()
