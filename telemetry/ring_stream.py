"""RingStream: one ring's facts in the order of its writer, with its losses and its end in their places."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.ring_frame import Frame
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingCursor, RingReader
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

FRAMES_AT_ONCE = 1024


class _Waiting(NamedTuple):
    """A fact that was read and not given yet; `after` is where the ring goes on behind it."""

    moment: int
    fact: Fact
    after: RingCursor


class RingStream:
    """A ring file being read. A fact's moment is the latest that it or any before it tells (monotonic ns)."""

    def __init__(self, reader: RingReader, source: Source) -> None:
        self.source = source
        self.cursor = reader.cursor
        """Where to go on reading if everything given so far is to count as taken."""
        self.is_finished = False
        self._reader = reader
        self._waiting: deque[_Waiting] = deque()
        self._read_to = reader.cursor
        self._moment = 0
        self._is_read = False
        self._is_alive = True
        self._is_marked = False

    @classmethod
    def open(
        cls, path: Path, source_of: Callable[[RingHeader], Source], cursors: Mapping[int, RingCursor]
    ) -> "RingStream":
        """Read on from this file's cursor, without one from its first record. RingError if that cannot be."""
        reader = RingReader(path)
        try:
            source = source_of(reader.header())
            cursor = cursors.get(source.generation)
            if cursor is None:
                return cls(reader, source)
        except BaseException:
            reader.close()
            raise
        reader.close()
        return cls(RingReader(path, cursor), source)

    def begin_round(self) -> None:
        """Look for what was published since the last round."""
        self._is_read = False
        # Asked before reading: what a writer that is dead by now has written is all there will be.
        self._is_alive = self._is_alive and self._reader.is_writer_alive()

    def has_next(self, decoder: RecordDecoder) -> bool:
        """Whether there is a fact to give, after reading on if need be. RingError if the file broke."""
        while not self._waiting and not self._is_read:
            self._read(decoder)
        return bool(self._waiting)

    def next_moment(self) -> int:
        """The moment of the next fact; there must be one."""
        return self._waiting[0].moment

    def take(self, until: int | None, limit: int) -> Iterator[Fact]:
        """Give facts that were read, up to this moment, and at most so many."""
        for _ in range(limit):
            if not self._waiting or (until is not None and self._waiting[0].moment > until):
                return
            waiting = self._waiting.popleft()
            self.cursor = waiting.after
            self.is_finished = isinstance(waiting.fact, SourceGone)
            yield waiting.fact

    def give_up(self) -> None:
        """The file broke: nothing more will come of it."""
        self._is_read = True
        self._mark_end()

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def _read(self, decoder: RecordDecoder) -> None:
        frames = self._reader.read(FRAMES_AT_ONCE)
        for frame in frames:
            self._add(frame, decoder)
        if len(frames) == FRAMES_AT_ONCE:
            return
        self._is_read = True
        self._expect(self._reader.cursor.sequence)
        if not self._is_alive:
            self._mark_end()

    def _add(self, frame: Frame, decoder: RecordDecoder) -> None:
        self._expect(frame.sequence)
        self._read_to = RingCursor(self.source.generation, frame.end, frame.sequence + 1)
        record = decoder.decode(frame.payload)
        if record is None:
            self._wait(RecordsLost(1))
            return
        self._moment = max(self._moment, moment_of(record))
        self._wait(record)

    def _expect(self, sequence: int) -> None:
        """The next record is this one; those between are lost."""
        num_lost = sequence - self._read_to.sequence
        if num_lost > 0:
            self._read_to = self._read_to._replace(sequence=sequence)
            self._wait(RecordsLost(num_lost))

    def _mark_end(self) -> None:
        if not self._is_marked:
            self._is_marked = True
            self._wait(SourceGone())

    def _wait(self, fact: Fact) -> None:
        self._waiting.append(_Waiting(self._moment, fact, self._read_to))
