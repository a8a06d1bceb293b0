"""RingFrames: tells a whole frame from anything else in a copy of a ring's data area."""

from typing import NamedTuple
from zlib import crc32

from vllm_obs.telemetry.ring import (
    ALIGNMENT,
    CHECKSUM_MASK,
    FRAME,
    FRAME_BYTES,
    RECORD_SHARE,
    SKIP_LENGTH,
    SKIP_PAYLOAD,
)


class Frame(NamedTuple):
    """One whole frame. `end` is the position of the next one; `payload` is empty only for a skip to the start."""

    end: int
    sequence: int
    payload: bytes


class RingFrames:
    """Knows the frames of one ring file: of this capacity and this generation."""

    def __init__(self, capacity: int, generation: int) -> None:
        self.capacity = capacity
        self.max_bytes = capacity // RECORD_SHARE
        self._generation = generation

    def at(self, data: bytes, offset: int, position: int) -> Frame | None:
        """The whole frame that begins at `offset` of `data`, which is `position` in the ring, or None."""
        if offset + FRAME_BYTES > len(data):
            return None
        length, checksum, sequence = FRAME.unpack_from(data, offset)
        start = offset + FRAME_BYTES
        if length == SKIP_LENGTH:
            end = position - position % self.capacity + self.capacity
            payload = b""
        elif length and start + length <= len(data):
            # `padded`, written out: this is done for every record.
            end = position + FRAME_BYTES + ((length + ALIGNMENT - 1) & -ALIGNMENT)
            payload = data[start : start + length]
        else:
            return None
        seed = (self._generation + position + sequence) & CHECKSUM_MASK
        return Frame(end, sequence, payload) if crc32(payload or SKIP_PAYLOAD, seed) == checksum else None

    def find(self, data: bytes, begin: int, start: int, sequences: range) -> int | None:
        """The first offset from `start` on at which a whole frame of one of these sequences begins, or None.

        `data` begins at position `begin` of the ring.
        """
        for offset in range(start, len(data) - FRAME_BYTES + 1, ALIGNMENT):
            # The checksum of every candidate would cost its whole length; the sequence weeds nearly all out.
            if FRAME.unpack_from(data, offset)[2] in sequences and self.at(data, offset, begin + offset):
                return offset
        return None
