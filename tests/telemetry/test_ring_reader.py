"""A reader gives whole records in order, counts exactly what it missed, and names what is no ring."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.records import FrameDropped
from vllm_obs.telemetry.ring import (
    FRAME_BYTES,
    HEADER_BYTES,
    RingError,
    RingFormatError,
    RingReplacedError,
    Word,
    padded,
)
from vllm_obs.telemetry.ring_frame import Frame
from vllm_obs.telemetry.ring_reader import RingCursor, RingReader

MakeRecorder = Callable[..., FlightRecorder]
MakeReader = Callable[..., RingReader]
MakeDropped = Callable[..., FrameDropped]

DECODER = RecordDecoder()
CAPACITY = 4096
same_directory = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None, database=None
)


def numbers(frames: list[Frame]) -> list[int]:
    """The numbers that records were given, each of which must be its sequence as well."""
    decoded = [DECODER.decode(frame.payload) for frame in frames]
    found = [record.dropped_at for record in decoded if isinstance(record, FrameDropped)]
    assert found == [frame.sequence for frame in frames]
    return found


def frame_bytes(frame: Frame) -> int:
    return FRAME_BYTES + padded(len(frame.payload))


def copy_with(path: Path, changes: dict[int, bytes]) -> Path:
    """A copy of a ring file with other bytes at some places of its data area."""
    content = bytearray(path.read_bytes())
    for offset, changed in changes.items():
        content[HEADER_BYTES + offset : HEADER_BYTES + offset + len(changed)] = changed
    copy = path.with_name("copy.ring")
    copy.write_bytes(content)
    return copy


def set_word(path: Path, word: Word, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(value.to_bytes(8, "little"))


@same_directory
@given(lengths=st.lists(st.integers(0, 200), max_size=200), chunk=st.integers(1, 40))
def test_a_reader_that_keeps_up_sees_everything(
    lengths: list[int], chunk: int, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = FlightRecorder(ring_path, "r", CAPACITY)
    seen: list[int] = []
    with RingReader(ring_path) as reader:
        for number, length in enumerate(lengths):
            recorder.record(dropped(number, length))
            if number % chunk % 12 == 0:
                seen += numbers(reader.read())
        seen += numbers(reader.read())
        assert seen == list(range(len(lengths)))
        assert (reader.num_lost, reader.num_torn) == (0, 0)
    recorder.close()
    ring_path.unlink()


@same_directory
@given(bursts=st.lists(st.lists(st.integers(0, 200), max_size=120), max_size=8), most=st.integers(1, 50))
def test_lost_and_seen_make_all_that_was_written(
    bursts: list[list[int]], most: int, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = FlightRecorder(ring_path, "r", CAPACITY)
    seen: list[int] = []
    written = 0
    with RingReader(ring_path) as reader:
        for burst in bursts:
            for length in burst:
                recorder.record(dropped(written, length))
                written += 1
            seen += numbers(reader.read(most))
            assert seen == sorted(set(seen))
            assert len(seen) + reader.num_lost == reader.cursor.sequence
        while frames := reader.read(most):
            seen += numbers(frames)
        assert len(seen) + reader.num_lost == written == reader.header().sequence
        assert reader.num_torn == 0
    recorder.close()
    ring_path.unlink()


@settings(same_directory, max_examples=20)
@given(lengths=st.lists(st.integers(0, 200), min_size=100, max_size=150))
def test_everything_that_is_still_whole_is_found(
    lengths: list[int], ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = FlightRecorder(ring_path, "r", CAPACITY)
    ends: list[int] = []
    with RingReader(ring_path) as reader:
        for number, length in enumerate(lengths):
            recorder.record(dropped(number, length))
            ends.append(reader.header().cursor)
        header = reader.header()
        seen = numbers(reader.read())
        begins = [0, *ends[:-1]]
        whole = [n for n, begin in enumerate(begins) if begin >= header.reserved - CAPACITY]
        # A record after a skip begins later than the one before it ends, so one more may be whole.
        assert seen in (whole, [whole[0] - 1, *whole])
        assert reader.num_lost == seen[0]
    recorder.close()
    ring_path.unlink()


def test_a_read_takes_no_more_than_asked_for(
    make_recorder: MakeRecorder, make_reader: MakeReader, dropped: MakeDropped
) -> None:
    recorder, reader = make_recorder(), make_reader()
    for number in range(10):
        recorder.record(dropped(number))
    assert [numbers(reader.read(4)) for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]


def test_a_reader_goes_on_from_a_cursor(
    make_recorder: MakeRecorder, make_reader: MakeReader, dropped: MakeDropped
) -> None:
    recorder, reader = make_recorder(), make_reader()
    for number in range(10):
        recorder.record(dropped(number))
    reader.read(6)
    kept = RingCursor(*tuple(reader.cursor))
    again = make_reader(cursor=kept)
    assert numbers(again.read()) == [6, 7, 8, 9]
    assert again.num_lost == 0
    for number in range(10, 500):
        recorder.record(dropped(number))
    late = make_reader(cursor=kept)
    seen = numbers(late.read())
    assert seen[-1] == 499
    assert late.num_lost == seen[0] - 6


def test_a_cursor_of_an_earlier_file_is_a_named_error(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path
) -> None:
    make_recorder()
    cursor = make_reader().cursor
    make_recorder()
    with pytest.raises(RingReplacedError, match="newer ring"):
        RingReader(ring_path, cursor)
    assert make_reader(ring_path.with_name("EngineCore_DP0.1.ring"), cursor).read() == []


@pytest.mark.parametrize("position", [-16, 8, 16, 10**9])
def test_a_cursor_past_what_is_written_is_a_named_error(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, position: int
) -> None:
    make_recorder()
    with pytest.raises(RingError, match="no record begins at"):
        RingReader(ring_path, RingCursor(make_reader().generation, position, 0))


@pytest.mark.parametrize("position", range(16, 160, 16))
def test_a_cursor_inside_a_record_finds_the_next(
    make_recorder: MakeRecorder, make_reader: MakeReader, dropped: MakeDropped, position: int
) -> None:
    recorder = make_recorder()
    for number in range(4):
        recorder.record(dropped(number, 100))
    first = make_reader()
    sizes = [frame_bytes(frame) for frame in first.read()]
    reader = make_reader(cursor=RingCursor(first.generation, position, 0))
    expected = -(-position // sizes[0])
    assert numbers(reader.read()) == list(range(expected, 4))


@pytest.mark.parametrize("torn", [0, 2, 4])
def test_a_record_torn_at_any_byte_is_left_out_and_counted(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, dropped: MakeDropped, torn: int
) -> None:
    recorder = make_recorder()
    for number in range(5):
        recorder.record(dropped(number, 10 * number))
    whole = make_reader().read()
    content = ring_path.read_bytes()[HEADER_BYTES:]
    begin = sum(map(frame_bytes, whole[:torn]))
    for offset in range(begin, begin + FRAME_BYTES + len(whole[torn].payload)):
        with RingReader(copy_with(ring_path, {offset: bytes([content[offset] ^ 0x41])})) as reader:
            assert reader.read() == whole[:torn] + whole[torn + 1 :]
            assert (reader.num_lost, reader.num_torn) == (1, 1)
            assert reader.read() == []
            assert reader.num_lost == 1


@same_directory
@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=14),
    holes=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 600)), max_size=4),
)
def test_whatever_was_overwritten_the_rest_is_read(
    lengths: list[int], holes: list[tuple[int, int]], ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = FlightRecorder(ring_path, "r", CAPACITY)
    for number, length in enumerate(lengths):
        recorder.record(dropped(number, length))
    recorder.close()
    with RingReader(ring_path) as reader:
        frames = reader.read()
    torn_bytes = {place for begin, length in holes for place in range(begin, begin + length)}
    begin, whole = 0, []
    for frame in frames:
        if torn_bytes.isdisjoint(range(begin, begin + FRAME_BYTES + len(frame.payload))):
            whole.append(frame)
        begin = frame.end
    content = ring_path.read_bytes()[HEADER_BYTES:]
    changes = {place: bytes([content[place] ^ 0xFF]) for place in torn_bytes if place < CAPACITY}
    with RingReader(copy_with(ring_path, changes)) as reader:
        assert reader.read() == whole
        assert reader.num_lost == len(frames) - len(whole)
    ring_path.unlink()


def test_each_torn_record_at_the_end_is_counted(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder, reader = make_recorder(), make_reader()
    for number in range(3):
        begin = reader.header().cursor
        recorder.record(dropped(number))
        with ring_path.open("r+b") as file:
            file.seek(HEADER_BYTES + begin + FRAME_BYTES)
            file.write(b"\xff")
        assert reader.read() == []
        assert (reader.num_torn, reader.num_lost) == (number + 1, number + 1)
    recorder.record(dropped(3))
    assert numbers(reader.read()) == [3]


def test_a_record_cut_at_any_byte_is_left_out(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, dropped: MakeDropped
) -> None:
    """As after a power cut: the cursor reached the disk, and of the last record only the first bytes."""
    recorder = make_recorder()
    for number in range(150):
        recorder.record(dropped(number, number % 50))
    before = ring_path.read_bytes()[HEADER_BYTES:]
    begin = make_reader().header().cursor % CAPACITY
    recorder.record(dropped(150, 60))
    whole = make_reader().read()
    length = FRAME_BYTES + len(whole[-1].payload)
    for kept in range(length):
        old = before[begin + kept : begin + length]
        with RingReader(copy_with(ring_path, {begin + kept: old})) as reader:
            frames = reader.read()
            assert frames in (whole, whole[:-1])
            assert len(frames) + reader.num_lost == 151


def test_a_writer_killed_at_any_byte_leaves_whole_records(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, dropped: MakeDropped
) -> None:
    """The next record is half written over the oldest ones, and the cursor does not know of it."""
    recorder = make_recorder()
    for number in range(150):
        recorder.record(dropped(number, number % 50))
    cursor = make_reader().header().cursor
    for num_bytes in range(16, 256, 16):
        copy = copy_with(ring_path, {cursor % CAPACITY: os.urandom(num_bytes)})
        set_word(copy, Word.RESERVED, cursor + num_bytes)
        with RingReader(copy) as reader:
            seen = numbers(reader.read())
            assert seen == list(range(seen[0], 150))
            assert (reader.num_lost, reader.num_torn) == (seen[0], 0)
            assert not reader.is_writer_alive()


def test_a_kill_between_cursor_and_sequence_loses_nothing(
    make_recorder: MakeRecorder, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = make_recorder()
    for number in range(3):
        recorder.record(dropped(number))
    copy = copy_with(ring_path, {})
    set_word(copy, Word.SEQUENCE, 2)
    with RingReader(copy) as reader:
        assert numbers(reader.read()) == [0, 1, 2]
        assert reader.num_lost == 0


def test_bytes_that_look_like_an_earlier_record_are_not_one(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = make_recorder()
    for number in range(5):
        recorder.record(dropped(number, 20))
    size = frame_bytes(make_reader().read()[0])
    content = ring_path.read_bytes()[HEADER_BYTES:]
    with RingReader(copy_with(ring_path, {size: content[3 * size : 4 * size]})) as reader:
        assert numbers(reader.read()) == [0, 2, 3, 4]


def test_the_writers_life_is_seen(make_recorder: MakeRecorder, make_reader: MakeReader) -> None:
    recorder, reader = make_recorder(), make_reader()
    assert reader.is_writer_alive()
    assert make_reader().is_writer_alive()
    recorder.close()
    assert not reader.is_writer_alive()


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 8191])
def test_a_cut_file_is_a_named_error(
    make_recorder: MakeRecorder, make_reader: MakeReader, ring_path: Path, num_bytes: int
) -> None:
    make_recorder()
    copy = copy_with(ring_path, {})
    reader = make_reader(copy)
    os.truncate(copy, num_bytes)
    with pytest.raises(RingFormatError, match=f"has {num_bytes} bytes"):
        RingReader(copy)
    for look in (reader.read, reader.header):
        with pytest.raises(RingFormatError, match=f"has {num_bytes} bytes; its ring needs 8192"):
            look()


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (Word.MAGIC, 0, "not a ring file"),
        (Word.LAYOUT_VERSION, 99, "layout 99; this version reads layout 1"),
        (Word.CAPACITY, 0, "0 bytes, not a multiple"),
        (Word.CAPACITY, 5000, "5000 bytes, not a multiple"),
        (Word.CAPACITY, 2**60, f"its ring needs {2**60 + 4096}"),
    ],
)
def test_a_wrong_header_is_a_named_error(
    make_recorder: MakeRecorder, ring_path: Path, word: Word, value: int, message: str
) -> None:
    make_recorder()
    copy = copy_with(ring_path, {})
    set_word(copy, word, value)
    with pytest.raises(RingFormatError, match=message):
        RingReader(copy)


@pytest.mark.parametrize("word", [Word.GENERATION, Word.CURSOR, Word.RESERVED])
@pytest.mark.parametrize("value", [0, 8, 2**62, 2**64 - 1])
def test_a_header_overwritten_later_ends_the_reading(
    make_recorder: MakeRecorder,
    make_reader: MakeReader,
    ring_path: Path,
    dropped: MakeDropped,
    word: Word,
    value: int,
) -> None:
    recorder = make_recorder()
    for number in range(150):
        recorder.record(dropped(number))
    copy = copy_with(ring_path, {})
    reader = make_reader(copy)
    reader.read(5)
    set_word(copy, word, value)
    with pytest.raises(RingFormatError, match="was overwritten"):
        reader.read()


@given(st.binary(max_size=300))
@same_directory
def test_garbage_is_a_named_error(ring_path: Path, content: bytes) -> None:
    ring_path.write_bytes(content + os.urandom(9000))
    with pytest.raises(RingFormatError, match=re.escape(str(ring_path))):
        RingReader(ring_path)


def test_a_garbage_data_area_ends_and_is_counted(
    make_recorder: MakeRecorder, ring_path: Path, dropped: MakeDropped
) -> None:
    recorder = make_recorder()
    for number in range(150):
        recorder.record(dropped(number))
    with RingReader(copy_with(ring_path, {0: os.urandom(CAPACITY)})) as reader:
        assert reader.read() == []
        assert reader.num_lost == 150


def test_no_file_is_a_named_error(ring_path: Path) -> None:
    with pytest.raises(RingError, match="cannot open the ring"):
        RingReader(ring_path)
