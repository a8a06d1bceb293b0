"""An incident's recording: the newest records of every ring, saved so that `vllm-obs replay` opens them."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.record_codec import RecordDecoder, encode
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.recording_file import (
    Entry,
    RecordedEnd,
    RecordedFact,
    RecordedLoss,
    RecordedSource,
    RecordingHeader,
    write_recording,
)
from vllm_obs.telemetry.ring import ALIGNMENT, RingError
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingCursor, RingReader
from vllm_obs.telemetry.ring_tail import source_of
from vllm_obs.telemetry.run_facts import PinnedFact
from vllm_obs.telemetry.view import Source

RECORDING = "recording"
MAX_TAIL_BYTES = 1 << 20
"""Of each ring: some thousand records."""
MAX_RINGS = 64


class _Kept(NamedTuple):
    moment: int
    number: int
    payload: bytes


class _Tail(NamedTuple):
    """The end of one ring."""

    source: Source
    is_whole: bool
    is_gone: bool
    payloads: list[bytes]


def save_tails(run_dir: Path, path: Path, before: Iterable[PinnedFact], version: str = "") -> int:
    """Save the ends of a run's rings behind what is known `before` them; the size in bytes.

    Raises RecordingError when the file cannot be written.
    """
    tails = [tail for ring in sorted(run_dir.glob("*.ring"))[:MAX_RINGS] if (tail := _tail_of(ring)) is not None]
    kept = sorted(_dated(tails), key=lambda entry: entry.moment)
    begins_at = next((entry.moment for entry in kept if entry.moment), 0)
    header = RecordingHeader(run_dir.name, version, begins_at, time.monotonic_ns(), time.time_ns(), 0)
    return write_recording(path, header, _entries(tails, list(before), kept))


def tail_cursors(run_dir: Path) -> list[RingCursor]:
    """Where the end of each ring begins, to read on from; a record may not begin there."""
    cursors: list[RingCursor] = []
    for path in sorted(run_dir.glob("*.ring"))[:MAX_RINGS]:
        with contextlib.suppress(RingError, OSError), RingReader(path) as reader:
            cursors.append(_tail_cursor(reader.header()))
    return cursors


def _tail_cursor(header: RingHeader) -> RingCursor:
    begin = max(0, header.cursor - MAX_TAIL_BYTES) // ALIGNMENT * ALIGNMENT
    return RingCursor(header.generation, begin, 0)


def _tail_of(path: Path) -> _Tail | None:
    try:
        with RingReader(path) as reader:
            header, is_alive = reader.header(), reader.is_writer_alive()
        cursor = _tail_cursor(header)
        payloads: list[bytes] = []
        with RingReader(path, cursor) as reader:
            # A live writer goes on meanwhile: what it had written when this began is enough.
            while reader.cursor.position < header.cursor and (frames := reader.read()):
                payloads += [frame.payload for frame in frames]
    except (RingError, OSError):
        return None
    return _Tail(source_of(header), cursor.position == 0, not is_alive, payloads)


def _dated(tails: list[_Tail]) -> Iterator[_Kept]:
    """Every record with the latest moment that it or any before it of its source tells."""
    decoder = RecordDecoder()
    for number, tail in enumerate(tails):
        moment = 0
        for payload in tail.payloads:
            record = decoder.decode(payload)
            if record is not None:
                moment = max(moment, moment_of(record))
                yield _Kept(moment, number, payload)


def _entries(tails: list[_Tail], before: list[PinnedFact], kept: list[_Kept]) -> Iterator[Entry]:
    numbers = {tail.source: number for number, tail in enumerate(tails)}
    for tail in tails:
        yield RecordedSource(*tail.source)
    for tail in tails:
        if not tail.is_whole:
            # What was before is missing here and was not lost.
            yield RecordedLoss(numbers[tail.source], 0)
    recorded = {(entry.number, entry.payload) for entry in kept}
    for source, record in before:
        known = (numbers.get(source, -1), encode(record))
        if source in numbers and known not in recorded:
            yield RecordedFact(*known)
    for _, number, payload in kept:
        yield RecordedFact(number, payload)
    for tail in tails:
        if tail.is_gone:
            yield RecordedEnd(numbers[tail.source])
