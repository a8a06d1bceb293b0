"""RingHeader: one look at the header page of a ring, which says who writes it and what that process is doing."""

from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.ring import (
    HEADER_BYTES,
    HOST_BYTES,
    HOST_OFFSET,
    LAYOUT_VERSION,
    MAGIC,
    MIN_CAPACITY,
    ROLE_BYTES,
    ROLE_OFFSET,
    RingFormatError,
    Word,
)


class RingHeader(NamedTuple):
    """The header as it was at one moment. `closed_at` is 0 unless the writer ended in order.

    `wall_at` is the wall clock (ns) at `started_at`. `num_unencodable` and `num_oversized` records were dropped
    by the writer; `sequence` is the number of records with those, and may be one behind after a kill. `host` names
    the host of the process in a mirror of its ring (ring_mirror.py) and is empty where that is this host: a pid
    means nothing elsewhere. `origin_generation` is then that ring's, `origin_sequence` where in it this begins.
    """

    capacity: int
    generation: int
    role: str
    pid: int
    started_at: int
    wall_at: int
    closed_at: int
    reserved: int
    cursor: int
    sequence: int
    num_unencodable: int
    num_oversized: int
    heartbeat_at: int
    step: int
    progress: int
    activity: Activity
    activity_at: int
    host: str = ""
    origin_generation: int = 0
    origin_sequence: int = 0


def read_header(page: memoryview, path: Path) -> RingHeader:
    """The header in the first HEADER_BYTES of a ring. `path` is for the words of RingFormatError only."""
    words = page[:HEADER_BYTES].cast("Q")
    check_header(words, path)
    return RingHeader(
        capacity=words[Word.CAPACITY],
        generation=words[Word.GENERATION],
        role=_text(page[ROLE_OFFSET : ROLE_OFFSET + ROLE_BYTES]),
        pid=words[Word.PID],
        started_at=words[Word.STARTED_AT],
        wall_at=words[Word.WALL_AT],
        closed_at=words[Word.CLOSED_AT],
        # SEQUENCE before CURSOR, as ring.py's order of stores asks for.
        sequence=words[Word.SEQUENCE],
        cursor=words[Word.CURSOR],
        reserved=words[Word.RESERVED],
        num_unencodable=words[Word.NUM_UNENCODABLE],
        num_oversized=words[Word.NUM_OVERSIZED],
        heartbeat_at=words[Word.HEARTBEAT_AT],
        step=words[Word.STEP],
        progress=words[Word.PROGRESS],
        activity=Activity.of(words[Word.ACTIVITY]),
        activity_at=words[Word.ACTIVITY_AT],
        host=_text(page[HOST_OFFSET : HOST_OFFSET + HOST_BYTES]),
        origin_generation=words[Word.ORIGIN_GENERATION],
        origin_sequence=words[Word.ORIGIN_SEQUENCE],
    )


def _text(field: memoryview) -> str:
    return bytes(field).rstrip(b"\0").decode(errors="replace")


def check_header(words: memoryview, path: Path) -> None:
    """RingFormatError unless these words begin a ring that this code can read."""
    if words[Word.MAGIC] != MAGIC:
        raise RingFormatError(f"{path} is not a ring file")
    if words[Word.LAYOUT_VERSION] != LAYOUT_VERSION:
        raise RingFormatError(
            f"{path} has ring layout {words[Word.LAYOUT_VERSION]}; this version reads layout {LAYOUT_VERSION}"
        )
    capacity = words[Word.CAPACITY]
    if capacity < MIN_CAPACITY or capacity % MIN_CAPACITY:
        raise RingFormatError(f"{path} says its ring has {capacity} bytes, not a multiple of {MIN_CAPACITY}")
