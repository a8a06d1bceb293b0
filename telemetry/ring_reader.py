"""RingReader: reads whole records from a ring file while its writer writes, or after the writer's death."""

import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from vllm_obs.telemetry.ring import ALIGNMENT, HEADER_BYTES, RingError, RingFormatError, RingReplacedError, Word
from vllm_obs.telemetry.ring_frame import Frame, RingFrames
from vllm_obs.telemetry.ring_header import RingHeader, read_header

MAX_FRAMES = 4096
LOOKS = 8
"""How often a frame that is not whole is copied afresh before it counts as torn."""

SPAN_SHARE = 8
"""At most this fraction of the ring is copied at once: a smaller copy is less likely to be overrun meanwhile."""


class RingCursor(NamedTuple):
    """Where a reader stands, in plain values to keep in a checkpoint: the next record's place and sequence."""

    generation: int
    position: int
    sequence: int


class Span(NamedTuple):
    """A copy of the ring from `begin` on, in which all frames that begin before `limit` can be read.

    `newest` is above every sequence in it.
    """

    begin: int
    data: bytes
    limit: int
    newest: int


class RingReader:
    """Reads one ring file from a cursor on; without one from the first record ever written.

    `num_lost` counts the records that were overwritten before they were read, torn, or dropped by the writer: with
    those read it makes all there were. `num_torn` counts the places where a published frame was not whole.
    Raises RingError if the file cannot be opened, RingFormatError if it is not a whole ring file, and
    RingReplacedError if `cursor` belongs to another file that had this name.
    """

    def __init__(self, path: Path, cursor: RingCursor | None = None) -> None:
        self.path = path
        self.num_lost = 0
        self.num_torn = 0
        self._fd = _open(path)
        try:
            self._map = _map(self._fd, path)
            header = read_header(memoryview(self._map), path)
            self._frames = RingFrames(header.capacity, header.generation)
            self._words = memoryview(self._map)[:HEADER_BYTES].cast("Q")
            self.generation = header.generation
            self._num_bytes = HEADER_BYTES + header.capacity
            self._check_size()
            self._place(cursor or RingCursor(header.generation, 0, 0), header)
        except BaseException:
            os.close(self._fd)
            raise
        self._is_aligned = True
        self._num_looks = 0

    @property
    def cursor(self) -> RingCursor:
        """Where the next `read` begins."""
        return RingCursor(self.generation, self._position, self._sequence)

    @property
    def modified_at(self) -> int:
        """When the file system says that the file was written last (ns since 1970)."""
        return os.fstat(self._fd).st_mtime_ns

    def read(self, max_frames: int = MAX_FRAMES) -> list[Frame]:
        """The next whole records in order, at most `max_frames`; empty when all that is published has been read.

        Raises RingFormatError if the file was cut or overwritten since it was opened.
        """
        frames: list[Frame] = []
        written, end = self._published()
        while self._position < end and len(frames) < max_frames:
            self._take(self._copy(end), frames, max_frames)
            if self._position > end:
                # Overrun by more than the ring holds: what was the end when this began is gone.
                written, end = self._published()
        if self._position == end:
            self._is_aligned = True
            # Where the last published frames were torn, no later one shows the gap.
            self._expect(max(self._sequence, written))
        return frames

    @property
    def is_overrun(self) -> bool:
        """Whether the next record has been overwritten by now."""
        return self._words[Word.RESERVED] - self._frames.capacity > self._position

    def skip_to_newest(self) -> None:
        """Go on with the next record that will be written; those before it count as lost."""
        header = self.header()
        self._position, self._is_aligned, self._num_looks = header.cursor, True, 0
        self._expect(max(self._sequence, header.sequence))

    def header(self) -> RingHeader:
        """The header as it is now."""
        self._check_size()
        return read_header(memoryview(self._map), self.path)

    def is_writer_alive(self) -> bool:
        """Whether the process that writes this file still has it open."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Let go of the file."""
        if not self._map.closed:
            self._words.release()
            self._map.close()
            os.close(self._fd)

    def __enter__(self) -> "RingReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place(self, cursor: RingCursor, header: RingHeader) -> None:
        if cursor.generation != header.generation:
            raise RingReplacedError(f"{self.path} is a newer ring, of process {header.pid}, than the cursor's")
        if not 0 <= cursor.position <= header.cursor or cursor.position % ALIGNMENT:
            raise RingError(f"{self.path} is written up to {header.cursor}; no record begins at {cursor.position}")
        self._position = cursor.position
        self._sequence = cursor.sequence

    def _published(self) -> tuple[int, int]:
        """How many records are published at least, and where they end."""
        self._check_size()
        words = self._words
        written, end, reserved = words[Word.SEQUENCE], words[Word.CURSOR], words[Word.RESERVED]
        is_ours = words[Word.GENERATION] == self.generation and end % ALIGNMENT == 0
        if not is_ours or not self._position <= end <= reserved + self._frames.capacity:
            raise RingFormatError(f"{self.path} was overwritten: its cursor is {end} after {self._position}")
        return written, end

    def _copy(self, end: int) -> Span:
        """What lies between here and `end`, up to the end of the lap; moves on past what has been overwritten."""
        begin, capacity = self._position, self._frames.capacity
        offset = begin % capacity
        last = min(end - begin, capacity - offset)
        num_bytes = min(last, capacity // SPAN_SHARE)
        data = self._map[HEADER_BYTES + offset : HEADER_BYTES + offset + num_bytes]
        oldest = self._words[Word.RESERVED] - capacity
        if oldest > begin:
            self._position = oldest
            self._is_aligned = False
        limit = num_bytes if num_bytes == last else num_bytes - self._frames.max_bytes
        # A frame may be published just before SEQUENCE counts it.
        return Span(begin, data, limit, newest=self._words[Word.SEQUENCE] + 2)

    def _take(self, span: Span, frames: list[Frame], max_frames: int) -> None:
        """Read the frames of a span from `_position` on."""
        if not self._is_aligned:
            self._align(span)
        frame_at = self._frames.at
        begin, data, limit, newest = span
        offset = self._position - begin
        while offset < limit and len(frames) < max_frames:
            frame = frame_at(data, offset, begin + offset)
            if frame is None or not self._sequence <= frame[1] < newest:
                self._look_again()
                return
            end, sequence, payload = frame
            self._num_looks = 0
            self._position = end
            if sequence != self._sequence:
                self._expect(sequence)
            if payload:
                self._sequence += 1
                frames.append(frame)
            offset = end - begin

    def _align(self, span: Span) -> None:
        """Move to the first whole frame of a span that has not been overwritten, or past the span."""
        start = self._position - span.begin
        if start >= span.limit:
            return
        found = self._frames.find(span.data, span.begin, start, range(self._sequence, span.newest))
        self._is_aligned = found is not None
        self._position = span.begin + (span.limit if found is None else found)

    def _look_again(self) -> None:
        """A frame was not whole: have it copied afresh, or, when that did not help, give it up."""
        self._num_looks += 1
        if self._num_looks >= LOOKS:
            self._num_looks = 0
            self.num_torn += 1
            self._position += ALIGNMENT
            self._is_aligned = False

    def _expect(self, sequence: int) -> None:
        """The next record is this one; those between are lost."""
        self.num_lost += sequence - self._sequence
        self._sequence = sequence

    def _check_size(self) -> None:
        # Reading a page that the file no longer has would be SIGBUS.
        num_bytes = os.fstat(self._fd).st_size
        if num_bytes < self._num_bytes:
            raise RingFormatError(f"{self.path} has {num_bytes} bytes; its ring needs {self._num_bytes}")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise RingError(f"cannot open the ring {path}: {error.strerror}") from None


def _map(ring_fd: int, path: Path) -> mmap.mmap:
    num_bytes = os.fstat(ring_fd).st_size
    if num_bytes < HEADER_BYTES:
        raise RingFormatError(f"{path} has {num_bytes} bytes; a ring's header needs {HEADER_BYTES}")
    return mmap.mmap(ring_fd, num_bytes, prot=mmap.PROT_READ)
