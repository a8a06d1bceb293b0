"""A recording is read as it was written, up to its last whole frame, and anything else is named."""

from pathlib import Path

import msgspec
import pytest

from vllm_obs.telemetry.recording_file import (
    Entry,
    RecordedEnd,
    RecordedFact,
    RecordedLoss,
    RecordedSource,
    RecordedTotal,
    RecordingError,
    RecordingHeader,
    RecordingReader,
    write_recording,
)

HEADER = RecordingHeader("run", "1.0", 5, 9, 11, 2)
ENTRIES: list[Entry] = [
    RecordedSource("EngineCore_DP0", 7, 2**62, "0"),
    RecordedFact(0, b"payload"),
    RecordedLoss(0, 3),
    RecordedFact(0, b""),
    RecordedEnd(0),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.rec"


def read(path: Path) -> tuple[RecordingHeader, list[Entry], int]:
    with RecordingReader(path) as reader:
        return reader.header, list(reader.entries()), reader.num_bad_bytes


def test_what_is_written_is_read(path: Path) -> None:
    assert write_recording(path, HEADER, ENTRIES) == path.stat().st_size
    assert read(path) == (HEADER, ENTRIES, 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_whole_if_all_that_was_written_could_be_read(path: Path) -> None:
    write_recording(path, HEADER, ENTRIES)
    whole = path.read_bytes()
    with RecordingReader(path) as reader:
        assert not reader.is_whole
        assert list(reader.entries()) == ENTRIES
        assert reader.is_whole
    last_frame_at = len(whole) - 8 - len(msgspec.msgpack.encode(RecordedTotal(len(ENTRIES))))
    path.write_bytes(whole[:last_frame_at])
    with RecordingReader(path) as reader:
        assert list(reader.entries()) == ENTRIES
        assert (reader.is_whole, reader.num_bad_bytes) == (False, 0)


def test_a_cut_file_is_read_to_its_last_whole_frame(path: Path) -> None:
    num_bytes = write_recording(path, HEADER, ENTRIES)
    whole = path.read_bytes()
    seen: set[int] = set()
    for end in range(num_bytes):
        path.write_bytes(whole[:end])
        try:
            header, entries, num_bad = read(path)
        except RecordingError:
            continue
        assert (header, entries) == (HEADER, ENTRIES[: len(entries)])
        seen.add(len(entries))
        assert num_bad <= end
    assert seen == set(range(len(ENTRIES) + 1))


def test_a_changed_byte_ends_it_and_is_counted(path: Path) -> None:
    write_recording(path, HEADER, ENTRIES)
    content = bytearray(path.read_bytes())
    content[content.index(b"payload")] ^= 1
    path.write_bytes(content)
    header, entries, num_bad = read(path)
    assert (header, entries) == (HEADER, ENTRIES[:1])
    assert num_bad > len(b"payload")


@pytest.mark.parametrize(
    "content", [b"", b"VOBSREC", b"VOBSREC1", b"VOBSREC1\xff\xff\xff\xff\0\0\0\0", b"x" * 100]
)
def test_what_is_no_recording_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"file\.rec"):
        RecordingReader(path)


def test_a_file_that_cannot_be_opened_is_named(path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        RecordingReader(path)
    with pytest.raises(RecordingError, match="cannot write"):
        write_recording(path / "x", HEADER, [])


def test_a_failed_save_leaves_the_file_before_it(path: Path) -> None:
    write_recording(path, HEADER, ENTRIES)

    def broken() -> object:
        yield ENTRIES[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_recording(path, HEADER, broken())  # type: ignore[arg-type]
    assert read(path) == (HEADER, ENTRIES, 0)
    assert [found.name for found in path.parent.iterdir()] == ["file.rec"]
