"""FlightRecorder: writes a process's facts into a memory-mapped ring that outlives it."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.record_codec import ENCODER, PREFIXES
from vllm_obs.telemetry.recorder import NullRecorder, ProcessRecorder
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.ring import (
    CHECKSUM_MASK,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    LAYOUT_VERSION,
    MAGIC,
    MIN_CAPACITY,
    RECORD_SHARE,
    ROLE_BYTES,
    ROLE_OFFSET,
    SKIP_LENGTH,
    SKIP_PAYLOAD,
    RingError,
    Word,
    padded,
)
from vllm_obs.telemetry.ring_file import create_ring_file, publish_ring_file

ENGINE_RING_BYTES = 16 * 1024 * 1024
API_SERVER_RING_BYTES = 4 * 1024 * 1024
WORKER_RING_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)

# Plain integers: an enum member's attribute look-up costs more than the store it is for.
_RESERVED, _CURSOR, _SEQUENCE = int(Word.RESERVED), int(Word.CURSOR), int(Word.SEQUENCE)
_HEARTBEAT_AT, _STEP, _PROGRESS = int(Word.HEARTBEAT_AT), int(Word.STEP), int(Word.PROGRESS)
_ACTIVITY, _ACTIVITY_AT = int(Word.ACTIVITY), int(Word.ACTIVITY_AT)
_PACK_FRAME = FRAME.pack_into
_ENCODE_INTO = ENCODER.encode_into


class FlightRecorder:
    """The single writer of one ring file; used from one thread, the process's main loop.

    Not from a signal handler, which could come in the middle of a record, nor in a forked child.

    Nothing here blocks, and `record` never raises: a record that cannot be encoded, or that takes more than a
    sixteenth of the ring, is dropped and counted in the header, and takes a sequence number, so that readers find
    it missing. After `close` everything is dropped in silence.
    `capacity_bytes` is rounded up to whole pages. Raises RingError if the file cannot be made.
    """

    def __init__(
        self,
        path: Path,
        role: str,
        capacity_bytes: int = ENGINE_RING_BYTES,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self.started_at, self.wall_at = clock(), time.time_ns()
        self._clock = clock
        self._capacity = max(MIN_CAPACITY, -(-capacity_bytes // MIN_CAPACITY) * MIN_CAPACITY)
        self._max_payload_bytes = self._capacity // RECORD_SHARE - FRAME_BYTES
        self._scratch = bytearray()
        self._position = 0
        self._sequence = 0
        self._progress = 0
        self._map = create_ring_file(path, self._capacity)
        self._view = memoryview(self._map)
        self._words = self._view[:HEADER_BYTES].cast("Q")
        self._ring = self._view[HEADER_BYTES:]
        self._generation = self._write_header(role)
        publish_ring_file(path)

    def record(self, record: Record) -> None:
        """Append one fact. Never blocks, never raises."""
        try:
            payload = self._scratch
            _ENCODE_INTO(PREFIXES[type(record)] + record, payload)
            if len(payload) <= self._max_payload_bytes:
                self._append(payload)
            else:
                self._drop(Word.NUM_OVERSIZED)
                # The scratch keeps the room of the largest record it ever held.
                self._scratch = bytearray()
        except Exception:
            self._drop(Word.NUM_UNENCODABLE)

    def heartbeat(self, now: int) -> None:
        """The main loop went round at `now` (monotonic ns)."""
        self._words[_HEARTBEAT_AT] = now

    def begin_step(self, step: int) -> None:
        """The process is in this step now."""
        self._words[_STEP] = step

    def doing(self, activity: Activity) -> None:
        """What the process does from now on."""
        words = self._words
        words[_ACTIVITY] = activity
        words[_ACTIVITY_AT] = self._clock()

    def advance(self) -> None:
        """Something moved: a layer, a loaded tensor. Readers take a counter that stands still for a stall."""
        self._progress = progress = self._progress + 1
        self._words[_PROGRESS] = progress

    def close(self) -> None:
        """Mark the ring as ended in order and let go of the file, which stays."""
        if self._map.closed:
            return
        self._words[Word.CLOSED_AT] = self._clock()
        words, ring, view = self._words, self._ring, self._view
        # From here on each record is too large, and the header words are nobody's.
        self._max_payload_bytes = -1
        self._words = memoryview(bytearray(HEADER_BYTES)).cast("Q")
        self._ring = self._view = memoryview(bytearray())
        for exported in (words, ring, view):
            exported.release()
        self._map.close()

    def _append(self, payload: bytearray) -> None:
        size = len(payload)
        frame_bytes = FRAME_BYTES + padded(size)
        position = self._position
        offset = position % self._capacity
        if offset + frame_bytes > self._capacity:
            position = self._skip_to_start(position, offset)
            offset = 0
        words, ring, sequence = self._words, self._ring, self._sequence
        end = position + frame_bytes
        words[_RESERVED] = end
        checksum = crc32(payload, (self._generation + position + sequence) & CHECKSUM_MASK)
        _PACK_FRAME(ring, offset, size, checksum, sequence)
        offset += FRAME_BYTES
        ring[offset : offset + size] = payload
        # No call from here on, so that no signal handler can run and raise between a store and its counterpart.
        words[_CURSOR] = self._position = end
        words[_SEQUENCE] = self._sequence = sequence + 1

    def _skip_to_start(self, position: int, offset: int) -> int:
        """Say at `offset` that the next frame is at the start; its position. Both are published with the frame."""
        end = position + self._capacity - offset
        self._words[_RESERVED] = end
        checksum = crc32(SKIP_PAYLOAD, (self._generation + position + self._sequence) & CHECKSUM_MASK)
        _PACK_FRAME(self._ring, offset, SKIP_LENGTH, checksum, self._sequence)
        return end

    def _drop(self, cause: Word) -> None:
        """Count a record that is not written; the gap in the sequence shows readers where it is missing."""
        words = self._words
        words[cause] += 1
        words[_SEQUENCE] = self._sequence = self._sequence + 1

    def _write_header(self, role: str) -> int:
        """Fill the header page; the file's generation. MAGIC comes last: a header without it is not one."""
        generation = int.from_bytes(os.urandom(8), "little") >> 1
        role_bytes = role.encode()[:ROLE_BYTES]
        self._view[ROLE_OFFSET : ROLE_OFFSET + len(role_bytes)] = role_bytes
        values = {
            Word.LAYOUT_VERSION: LAYOUT_VERSION,
            Word.CAPACITY: self._capacity,
            Word.GENERATION: generation,
            Word.PID: os.getpid(),
            Word.STARTED_AT: self.started_at,
            Word.WALL_AT: self.wall_at,
            Word.HEARTBEAT_AT: self.started_at,
            Word.ACTIVITY: Activity.STARTING,
            Word.ACTIVITY_AT: self.started_at,
            Word.MAGIC: MAGIC,
        }
        for word, value in values.items():
            self._words[word] = value
        return generation


def open_recorder(path: Path, role: str, capacity_bytes: int = ENGINE_RING_BYTES) -> ProcessRecorder:
    """A FlightRecorder, or, since telemetry may fail and serving may not, a NullRecorder and one warning."""
    try:
        return FlightRecorder(path, role, capacity_bytes)
    except (RingError, OSError) as error:
        logger.warning("this process goes on without a flight recorder: %s", error)
        return NullRecorder()
