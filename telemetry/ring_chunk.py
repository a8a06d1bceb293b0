"""RingChunk: what goes from one host to another of the rings there, as bytes that are checked on arrival."""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from vllm_obs.telemetry.ring import MIN_CAPACITY, ROLE_BYTES, RingError

CHUNK_VERSION = 1
MAX_PARTS = 256
MAX_FRAMES = 65_536

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Role = Annotated[str, Meta(pattern=rf"^[A-Za-z][A-Za-z0-9_]{{0,{ROLE_BYTES - 1}}}\Z")]
"""It becomes part of a file's name."""


class RingChunkError(RingError):
    """The bytes are no chunk of ours."""


class RingStatus(msgspec.Struct, array_like=True, frozen=True):
    """The words of a ring's header that change; moments are monotonic ns of the host they come from."""

    heartbeat_at: Count
    step: Count
    progress: Count
    activity: Count
    activity_at: Count
    num_unencodable: Count
    num_oversized: Count


class RingPart(msgspec.Struct, array_like=True, frozen=True):
    """The next records of one ring: `sequences` and `payloads` are parallel, as that ring has them.

    `next_sequence` is the first that is not told of yet: what is missing before it was lost there. `is_gone` says
    that the writer has ended and that this is all it wrote; `closed_at` is 0 unless it ended in order.
    """

    generation: Count
    role: Role
    pid: Count
    capacity: Annotated[int, Meta(ge=MIN_CAPACITY, le=2**40, multiple_of=MIN_CAPACITY)]
    started_at: Count
    wall_at: Count
    status: RingStatus
    sequences: Annotated[list[Count], Meta(max_length=MAX_FRAMES)]
    payloads: Annotated[list[bytes], Meta(max_length=MAX_FRAMES)]
    next_sequence: Count
    is_gone: bool = False
    closed_at: Count = 0


class RingChunk(msgspec.Struct, array_like=True, frozen=True):
    """Parts of rings, of each ring at most one."""

    version: int
    parts: Annotated[list[RingPart], Meta(max_length=MAX_PARTS)]


class RingPositions(msgspec.Struct, array_like=True, frozen=True):
    """What a mirror has: of each ring, by generation, the first sequence that it has not been told of."""

    version: int
    next_sequences: Annotated[dict[Count, Count], Meta(max_length=4 * MAX_PARTS)]


_Message = TypeVar("_Message", RingChunk, RingPositions)


def encode_chunk(parts: list[RingPart]) -> bytes:
    """A chunk's bytes."""
    return msgspec.msgpack.encode(RingChunk(CHUNK_VERSION, parts))


def decode_chunk(chunk: bytes) -> list[RingPart]:
    """The parts of a chunk. RingChunkError where the bytes are none, or those of another version."""
    decoded = _decode(chunk, RingChunk)
    if any(len(part.sequences) != len(part.payloads) for part in decoded.parts):
        raise RingChunkError("a part of a ring has not as many sequences as records")
    return decoded.parts


def encode_positions(next_sequences: dict[int, int]) -> bytes:
    """A mirror's positions as bytes."""
    return msgspec.msgpack.encode(RingPositions(CHUNK_VERSION, next_sequences))


def decode_positions(positions: bytes) -> dict[int, int]:
    """The next sequence of each ring, by generation. RingChunkError as for `decode_chunk`."""
    return _decode(positions, RingPositions).next_sequences


def _decode(data: bytes, kind: type[_Message]) -> _Message:
    try:
        decoded = msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RingChunkError(f"these {len(data)} bytes are no {kind.__name__}: {error}") from None
    if decoded.version != CHUNK_VERSION:
        raise RingChunkError(
            f"a {kind.__name__} has version {decoded.version}; this version reads {CHUNK_VERSION}"
        )
    return decoded
