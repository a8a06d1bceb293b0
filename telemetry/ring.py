"""Where everything lies in a ring file: the header page's words, the frame of a record, and the named errors.

A ring file is one header page and a data area of `capacity` bytes, all in the machine's own byte order. Positions
count bytes ever written and never wrap; `position % capacity` is the place in the data area.

Each record is a frame: payload length, checksum, sequence, then the payload, padded to 16 bytes. A frame never
crosses the end of the data area: one whose length is `SKIP_LENGTH` says that the next is at the start. The
checksum starts from the file's generation, the position and the sequence, so that bytes left from an earlier lap,
or bytes inside a payload that look like a frame, do not pass for a record.

Order of stores. The writer (1) raises RESERVED past what it is about to overwrite, (2) writes the frame, (3)
raises CURSOR, (4) raises SEQUENCE. A reader reads SEQUENCE before CURSOR, copies up to CURSOR, then reads RESERVED
and trusts only what lies less than one capacity behind it. Every header word is aligned and moved by one 8-byte
store (`memoryview.cast("Q")` copies a whole word), so none is seen half written. x86-64 keeps stores in order.
aarch64 may not, and Python has no barrier to ask for one: there a reader may see a cursor before its payload, or
new bytes before RESERVED. The checksum tells both, and the reader looks again before it calls a frame torn.
"""

import struct
from enum import IntEnum

MAGIC = int.from_bytes(b"VOBSRING", "little")
LAYOUT_VERSION = 1

HEADER_BYTES = 4096
ALIGNMENT = 16
MIN_CAPACITY = 4096
FRAME = struct.Struct("@IIQ")
FRAME_BYTES = FRAME.size
RECORD_SHARE = 16
"""A frame takes at most this fraction of the data area; so a reader knows how far a frame can reach."""
SKIP_LENGTH = 0xFFFF_FFFF
SKIP_PAYLOAD = b"skip"
CHECKSUM_MASK = 0xFFFF_FFFF

ROLE_OFFSET = 1024
ROLE_BYTES = 64
HOST_OFFSET = ROLE_OFFSET + ROLE_BYTES
HOST_BYTES = 64
"""The name of the host whose process wrote it, in a mirror; zeros in a ring of this host's. A mirror's two words
of its origin are that ring's generation, and the sequence there of what is 0 in the mirror."""


class Word(IntEnum):
    """Indices of the header's 8-byte words; what changes lies on other cache lines than what does not."""

    MAGIC = 0
    LAYOUT_VERSION = 1
    CAPACITY = 2
    GENERATION = 3
    PID = 4
    STARTED_AT = 5
    WALL_AT = 6
    CLOSED_AT = 7
    RESERVED = 16
    CURSOR = 17
    SEQUENCE = 18
    NUM_UNENCODABLE = 19
    NUM_OVERSIZED = 20
    HEARTBEAT_AT = 32
    STEP = 33
    PROGRESS = 34
    ACTIVITY = 35
    ACTIVITY_AT = 36
    ORIGIN_GENERATION = 48
    ORIGIN_SEQUENCE = 49


class RingError(Exception):
    """A ring file cannot be made or read."""


class RingFormatError(RingError):
    """The file is not a ring of this layout, or is shorter than its header says."""


class RingReplacedError(RingError):
    """A cursor belongs to an earlier file of the same path."""


def padded(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment of frames."""
    return (num_bytes + ALIGNMENT - 1) & -ALIGNMENT
