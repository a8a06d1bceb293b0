"""MirrorRing: a ring file that holds what a process of another host recorded, written by whoever is told of it."""

import os
from pathlib import Path
from zlib import crc32

from vllm_obs.telemetry.ring import (
    CHECKSUM_MASK,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    HOST_BYTES,
    HOST_OFFSET,
    LAYOUT_VERSION,
    MAGIC,
    RECORD_SHARE,
    ROLE_BYTES,
    ROLE_OFFSET,
    SKIP_LENGTH,
    SKIP_PAYLOAD,
    Word,
    padded,
)
from vllm_obs.telemetry.ring_chunk import RingPart
from vllm_obs.telemetry.ring_file import create_ring_file, publish_ring_file

MAX_RING_BYTES = 16 * 1024 * 1024


class MirrorRing:
    """The single writer of one mirror, whose lock stands for the life of the process it mirrors.

    Records keep their distance in the origin's sequence, so that a reader finds missing what is missing; the first
    that this mirror may have is number 0. Like a FlightRecorder's, its file is read by others at any time (ring.py
    has the order of stores). RingError if the file cannot be made.
    """

    def __init__(self, path: Path, origin: RingPart, host: str, begin: int, offset_ns: int = 0) -> None:
        """A mirror of this ring of that host from its sequence `begin` on; its clock is so far behind ours."""
        self.path = path
        self._begin = begin
        self._capacity = min(origin.capacity, MAX_RING_BYTES)
        self._position = 0
        self._generation = int.from_bytes(os.urandom(8), "little") >> 1
        self._map = create_ring_file(path, self._capacity)
        self._view = memoryview(self._map)
        self._words = self._view[:HEADER_BYTES].cast("Q")
        self._ring = self._view[HEADER_BYTES:]
        self._write_header(origin, host)
        self._words[Word.STARTED_AT] = at(origin.started_at, offset_ns)
        publish_ring_file(path)

    @property
    def next_sequence(self) -> int:
        """The first of the origin's that it has not been told of."""
        return self._begin + self._words[Word.SEQUENCE]

    def append(self, payload: bytes, sequence: int) -> None:
        """Write the record with this sequence, which is not below `next_sequence`; one too large is left out."""
        frame_bytes = FRAME_BYTES + padded(len(payload))
        if frame_bytes > self._capacity // RECORD_SHARE:
            return
        words, position, sequence = self._words, self._position, sequence - self._begin
        offset = position % self._capacity
        if offset + frame_bytes > self._capacity:
            words[Word.RESERVED] = skipped_to = position + self._capacity - offset
            FRAME.pack_into(
                self._ring, offset, SKIP_LENGTH, self._checksum(SKIP_PAYLOAD, position, sequence), sequence
            )
            position, offset = skipped_to, 0
        words[Word.RESERVED] = end = position + frame_bytes
        FRAME.pack_into(self._ring, offset, len(payload), self._checksum(payload, position, sequence), sequence)
        offset += FRAME_BYTES
        self._ring[offset : offset + len(payload)] = payload
        words[Word.CURSOR] = self._position = end
        words[Word.SEQUENCE] = sequence + 1

    def tell(self, part: RingPart, offset_ns: int) -> None:
        """What the header of the ring said when its next records were read."""
        status, words = part.status, self._words
        words[Word.SEQUENCE] = max(words[Word.SEQUENCE], part.next_sequence - self._begin)
        words[Word.STARTED_AT] = at(part.started_at, offset_ns)
        words[Word.HEARTBEAT_AT] = at(status.heartbeat_at, offset_ns)
        words[Word.STEP], words[Word.PROGRESS] = status.step, status.progress
        words[Word.ACTIVITY] = status.activity
        words[Word.ACTIVITY_AT] = at(status.activity_at, offset_ns)
        words[Word.NUM_UNENCODABLE], words[Word.NUM_OVERSIZED] = status.num_unencodable, status.num_oversized
        words[Word.CLOSED_AT] = at(part.closed_at, offset_ns)

    def close(self) -> None:
        """Let go of the file: from now on readers take the process for dead."""
        if not self._map.closed:
            for exported in (self._words, self._ring, self._view):
                exported.release()
            self._map.close()

    def _checksum(self, payload: bytes, position: int, sequence: int) -> int:
        return crc32(payload, (self._generation + position + sequence) & CHECKSUM_MASK)

    def _write_header(self, origin: RingPart, host: str) -> None:
        """MAGIC comes last: a header without it is not one."""
        for offset, num_bytes, text in ((ROLE_OFFSET, ROLE_BYTES, origin.role), (HOST_OFFSET, HOST_BYTES, host)):
            field = text.encode()[:num_bytes]
            self._view[offset : offset + len(field)] = field
        values = {
            Word.LAYOUT_VERSION: LAYOUT_VERSION,
            Word.CAPACITY: self._capacity,
            Word.GENERATION: self._generation,
            Word.PID: origin.pid,
            Word.WALL_AT: origin.wall_at,
            Word.ORIGIN_GENERATION: origin.generation,
            Word.ORIGIN_SEQUENCE: self._begin,
            Word.MAGIC: MAGIC,
        }
        for word, value in values.items():
            self._words[word] = value


def at(moment: int, offset_ns: int) -> int:
    """A moment of another host by this host's clock; 0 is none."""
    return max(1, moment + offset_ns) if moment else 0
