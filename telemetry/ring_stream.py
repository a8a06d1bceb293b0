"""RingStream: one ring's facts in the order of its writer, with its losses and its end in their places."""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingCursor, RingReader
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

FRAMES_AT_ONCE = 1024


_Waiting = tuple[int, Fact, int, int]
"""A fact that was read and not given yet: its moment, itself, and the place and number of the record behind it."""


class RingStream:
    """A ring file being read. A fact's moment is the latest that it or any before it tells (monotonic ns)."""

    def __init__(self, reader: RingReader, source: Source) -> None:
        self.source = source
        self.is_finished = False
        self._reader = reader
        self._waiting: deque[_Waiting] = deque()
        self._generation, self._given_to, self._given_sequence = reader.cursor
        self._read_to, self._read_sequence = self._given_to, self._given_sequence
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

    @property
    def cursor(self) -> RingCursor:
        """Where to go on reading if everything given so far is to count as taken."""
        return RingCursor(self._generation, self._given_to, self._given_sequence)

    def next_moment(self) -> int:
        """The moment of the next fact; there must be one."""
        return self._waiting[0][0]

    def take(self, until: int | None) -> Fact | None:
        """Give the next fact that was read, if there is one and it is not of a later moment."""
        waiting = self._waiting
        if not waiting or (until is not None and waiting[0][0] > until):
            return None
        _, fact, self._given_to, self._given_sequence = waiting.popleft()
        if type(fact) is SourceGone:
            self.is_finished = True
        return fact

    def give_up(self) -> None:
        """The file broke: nothing more will come of it."""
        self._is_read = True
        self._mark_end()

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def _read(self, decoder: RecordDecoder) -> None:
        frames = self._reader.read(FRAMES_AT_ONCE)
        decode, waiting = decoder.decode, self._waiting
        for end, sequence, payload in frames:
            if sequence != self._read_sequence:
                self._expect(sequence)
            self._read_to, self._read_sequence = end, sequence + 1
            record = decode(payload)
            if record is None:
                self._wait(RecordsLost(1))
                continue
            moment = moment_of(record)
            if moment > self._moment:
                self._moment = moment
            waiting.append((self._moment, record, end, sequence + 1))
        if len(frames) == FRAMES_AT_ONCE:
            return
        self._is_read = True
        self._expect(self._reader.cursor.sequence)
        if not self._is_alive:
            self._mark_end()

    def _expect(self, sequence: int) -> None:
        """The next record is this one; those between are lost."""
        num_lost = sequence - self._read_sequence
        if num_lost > 0:
            self._read_sequence = sequence
            self._wait(RecordsLost(num_lost))

    def _mark_end(self) -> None:
        if not self._is_marked:
            self._is_marked = True
            self._wait(SourceGone())

    def _wait(self, fact: Fact) -> None:
        self._waiting.append((self._moment, fact, self._read_to, self._read_sequence))
