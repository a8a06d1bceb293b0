"""RingShipper: a run directory's rings as chunks of bytes, which a RingMirror (ring_mirror.py) elsewhere writes.

How the bytes travel is somebody else's: nothing here knows of sockets. The mirror says first what it has
(`RingMirror.positions`), the shipper goes on from there (`resume`), and then chunk after chunk is asked for and
handed over. A chunk that is lost on the way shows in the mirror as records lost, and one that comes twice does no
harm.
"""

import contextlib
from collections import deque
from pathlib import Path

from vllm_obs.telemetry.open_rings import OpenRings
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_chunk import RingPart, RingStatus, decode_positions, encode_chunk
from vllm_obs.telemetry.ring_frame import Frame
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingReader

CHUNK_BYTES = 256 * 1024
FRAMES_AT_ONCE = 256
OBSERVER = "Observer"
"""Its own findings are about the run it is in, and stay there."""


class RingShipper:
    """Reads every ring of a run directory from its first record on, new rings as they appear.

    Where a writer has lapped the reader it goes on with the newest record, since what is old by now is worth less
    than what happens: `num_lost` counts what was left out. Mirrors of other hosts' rings are not shipped on.
    """

    def __init__(self, run_dir: Path) -> None:
        self._rings = OpenRings(run_dir)
        self._outgoing: dict[int, _OutgoingRing] = {}
        self._begin_at: dict[int, int] = {}
        self._num_turns = 0
        self._num_lost_before = 0

    @property
    def num_lost(self) -> int:
        """Records that were overwritten before they were read, torn, or dropped by their writers."""
        return self._num_lost_before + sum(ring.num_lost for ring in self._outgoing.values())

    def resume(self, positions: bytes) -> None:
        """Go on from what a mirror says it has. RingChunkError where these bytes do not say it."""
        self._begin_at = decode_positions(positions)
        self._num_lost_before = self.num_lost
        self._outgoing.clear()
        self._rings.close()

    def next_chunk(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        """What is new, empty when nothing is. Records beyond `max_bytes` wait; a single one may be larger."""
        parts: list[RingPart] = []
        room = max_bytes
        for reader in self._in_turn():
            with contextlib.suppress(RingError, OSError):  # it is tried again in the next turn
                part = self._of(reader).part(room)
                if part is None:
                    continue
                parts.append(part)
                room -= sum(len(payload) for payload in part.payloads)
                if part.is_gone:
                    self._part_with(reader)
            if room <= 0:
                break
        return encode_chunk(parts) if parts else b""

    def close(self) -> None:
        """Let go of every file."""
        self._rings.close()
        self._outgoing.clear()

    def _in_turn(self) -> list[RingReader]:
        """The rings, another one first each time, so that a busy one does not fill every chunk."""
        readers = list(self._rings.look())
        self._num_turns += 1
        begin = self._num_turns % len(readers) if readers else 0
        return readers[begin:] + readers[:begin]

    def _of(self, reader: RingReader) -> "_OutgoingRing":
        ring = self._outgoing.get(reader.generation)
        if ring is None or ring.reader is not reader:
            ring = self._outgoing[reader.generation] = _OutgoingRing(
                reader, self._begin_at.get(reader.generation, 0)
            )
        return ring

    def _part_with(self, reader: RingReader) -> None:
        ring = self._outgoing.pop(reader.generation)
        self._num_lost_before += ring.num_lost
        self._rings.done(reader)


class _OutgoingRing:
    """One ring being sent, from the record with the sequence `begin_at` on."""

    def __init__(self, reader: RingReader, begin_at: int) -> None:
        header = reader.header()
        self.reader = reader
        self.num_lost = 0
        self._next_sequence = begin_at
        self._is_own = not header.host and header.role != OBSERVER
        self._waiting: deque[Frame] = deque()
        self._has_begun = False
        self._told: tuple[int, RingStatus] | None = None

    def part(self, room: int) -> RingPart | None:
        """The next records, as many as fit in `room` bytes but one at least; None where nothing is new."""
        if not self._is_own:
            return None
        # Asked first: what a writer that is dead by now has written is all there will be.
        is_alive = self.reader.is_writer_alive()
        is_read_out = not self._waiting and self._read()
        frames = self._take(room)
        is_gone = is_read_out and not is_alive and not self._waiting
        header = self.reader.header()
        told = (self._next_sequence, _status(header))
        if told == self._told and not is_gone:
            return None
        self._told = told
        return RingPart(
            generation=header.generation,
            role=header.role,
            pid=header.pid,
            capacity=header.capacity,
            started_at=header.started_at,
            wall_at=header.wall_at,
            status=told[1],
            sequences=[frame.sequence for frame in frames],
            payloads=[frame.payload for frame in frames],
            next_sequence=told[0],
            is_gone=is_gone,
            closed_at=header.closed_at if is_gone else 0,
        )

    def _read(self) -> bool:
        """Read on; whether that was all there is."""
        if self._has_begun and self.reader.is_overrun:
            self.reader.skip_to_newest()
        self._has_begun = True
        frames = self.reader.read(FRAMES_AT_ONCE)
        self._waiting.extend(frame for frame in frames if frame.sequence >= self._next_sequence)
        return len(frames) < FRAMES_AT_ONCE

    def _take(self, room: int) -> list[Frame]:
        frames: list[Frame] = []
        while self._waiting and room > 0:
            frame = self._waiting.popleft()
            room -= len(frame.payload)
            frames.append(frame)
            self._expect(frame.sequence)
            self._next_sequence += 1
        if not self._waiting:
            # What its writer dropped last is followed by no record that would show the gap.
            self._expect(max(self._next_sequence, self.reader.cursor.sequence))
        return frames

    def _expect(self, sequence: int) -> None:
        """The next record is this one; those between are lost."""
        self.num_lost += sequence - self._next_sequence
        self._next_sequence = sequence


def _status(header: RingHeader) -> RingStatus:
    return RingStatus(
        header.heartbeat_at,
        header.step,
        header.progress,
        int(header.activity),
        header.activity_at,
        header.num_unencodable,
        header.num_oversized,
    )
