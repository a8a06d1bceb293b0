"""The file of a saved recording: a header, the processes it is from, and their records, in checksummed frames.

A file is MAGIC, then frames: length, CRC-32, and that many bytes of msgpack. The first frame is the header; then
each source comes before its first record; the last frame says how many there were between. A file that was cut
is read up to its last whole frame.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from zlib import crc32

import msgspec

MAGIC = b"VOBSREC1"
MAX_FRAME_BYTES = 16 << 20
_FRAME = struct.Struct("<II")


class RecordingError(Exception):
    """The file is no recording, or cannot be written or read."""


class RecordingHeader(msgspec.Struct, array_like=True, frozen=True):
    """What a recording is of. Moments are monotonic ns of the recorded host; `wall_at` is the wall clock (ns) at
    `recorded_at`. The span asked for begins at `begins_at`; records before it make its requests whole.
    `num_lost` records of the span were overwritten before they were saved."""

    run: str
    version: str
    begins_at: int
    recorded_at: int
    wall_at: int
    num_lost: int


class RecordedSource(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A process that records follow of; its number is how many came before it."""

    role: str
    pid: int
    generation: int
    engine: str
    host: str = ""


class RecordedFact(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """One record as its ring held it."""

    source: int
    payload: bytes


class RecordedLoss(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """So many records of a source were lost in this place."""

    source: int
    num: int


class RecordedEnd(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The last of a source: its process had ended."""

    source: int


class RecordedTotal(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """The last frame: so many entries came before it. A file without it was cut."""

    num_entries: int


Entry = RecordedSource | RecordedFact | RecordedLoss | RecordedEnd


def write_recording(path: Path, header: RecordingHeader, entries: Iterable[Entry]) -> int:
    """Write a whole recording and give it its name at the end; its size in bytes. RecordingError if it cannot."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _private_file(partial) as file:
            encoder = msgspec.msgpack.Encoder()
            file.write(MAGIC)
            _write_frame(file, encoder.encode(header))
            num_entries = 0
            for entry in entries:
                _write_frame(file, encoder.encode(entry))
                num_entries += 1
            _write_frame(file, encoder.encode(RecordedTotal(num_entries)))
            num_bytes = file.tell()
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RecordingError(f"cannot write {path}: {error.strerror}") from None
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return num_bytes


class RecordingReader:
    """Reads a recording's header at once, and its entries one after another.

    `num_bad_bytes` counts what could not be read of a cut or damaged file. `is_whole` once all entries of a whole
    file have been read. Raises RecordingError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bad_bytes = 0
        self.is_whole = False
        self._entries = msgspec.msgpack.Decoder(Entry | RecordedTotal)
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {error.strerror}") from None
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def entries(self) -> Iterator[Entry]:
        """What is left of the file."""
        num_entries = 0
        while (body := self._next_body()) is not None:
            try:
                entry = self._entries.decode(body)
            except msgspec.MsgspecError:
                self.num_bad_bytes += len(body)
                continue
            if isinstance(entry, RecordedTotal):
                self.is_whole = entry.num_entries == num_entries
                continue
            num_entries += 1
            yield entry

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> "RecordingReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_header(self) -> RecordingHeader:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise RecordingError(f"{self.path} is not a recording of vllm-obs")
        body = self._next_body()
        try:
            return msgspec.msgpack.decode(body or b"", type=RecordingHeader)
        except msgspec.MsgspecError as error:
            raise RecordingError(f"the header of {self.path} cannot be read: {error}") from None

    def _next_body(self) -> bytes | None:
        begin = self._file.tell()
        head = self._file.read(_FRAME.size)
        if len(head) == _FRAME.size:
            num_bytes, checksum = _FRAME.unpack(head)
            if num_bytes <= MAX_FRAME_BYTES:
                body = self._file.read(num_bytes)
                if len(body) == num_bytes and crc32(body) == checksum:
                    return body
        # Nothing after a frame that is not whole can be trusted to begin where it seems to.
        self.num_bad_bytes += self._file.seek(0, os.SEEK_END) - begin
        return None


def _private_file(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _write_frame(file: BinaryIO, body: bytes) -> None:
    file.write(_FRAME.pack(len(body), crc32(body)))
    file.write(body)
