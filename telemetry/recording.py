"""Saving a recording: the last records of a run's rings, alive or dead, gathered and written as one file."""

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
    RecordingError,
    RecordingHeader,
    write_recording,
)
from vllm_obs.telemetry.recording_start import opening_facts
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.run_facts import PinnedFact, RunFacts
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

DRAIN_RECORDS = 4096
MAX_READ_SECONDS = 30
NS = 1_000_000_000


class SavedRecording(NamedTuple):
    """What was written. `seconds` is from the first record of a step or request to the last."""

    num_records: int
    num_bytes: int
    num_lost: int
    seconds: float


class _Kept(NamedTuple):
    source: Source
    moment: int
    content: bytes | Fact
    """A record's payload, or what else came of its source."""


def save_recording(run_dir: Path, path: Path, last_ns: int, version: str = "") -> SavedRecording:
    """Save the last `last_ns` of a run, counted back from its newest record.

    What began before that and reaches into it is saved from its beginning, so that every request in the span is
    whole, if the rings still hold it. Raises RecordingError.
    """
    if not any(run_dir.glob("*.ring")):
        raise RecordingError(f"{run_dir} holds no rings")
    gathered = _Gathered()
    tail = RingTail(run_dir)
    try:
        gathered.take(tail)
    finally:
        tail.close()
    begins_at = max(0, gathered.newest_at - last_ns)
    left_out, chosen = gathered.cut(begins_at)
    lasting = RunFacts(run_dir, run_dir.name)
    opening = list(_opening(left_out, lasting))
    kept = [*_known_before(lasting, chosen), *opening, *chosen]
    num_lost = sum(entry.content.num for entry in chosen if isinstance(entry.content, RecordsLost))
    header = RecordingHeader(run_dir.name, version, begins_at, time.monotonic_ns(), time.time_ns(), num_lost)
    num_bytes = write_recording(path, header, _entries(kept))
    num_records = sum(isinstance(entry.content, bytes) for entry in kept)
    first_at = next((entry.moment for entry in chosen if not isinstance(entry.content, SourceGone)), 0)
    seconds = (gathered.newest_at - first_at) / NS if first_at else 0.0
    return SavedRecording(num_records, num_bytes, num_lost, seconds)


class _Gathered:
    """All that the rings hold, encoded, with the moment of each record; bounded by the rings' size."""

    def __init__(self) -> None:
        self.newest_at = 0
        self._kept: list[_Kept] = []
        self._received_at: dict[str, int] = {}
        self._ended_at: dict[str, int] = {}
        self._moments: dict[Source, int] = {}
        self._gaps: dict[Source, int] = {}
        """Where in `_kept` the newest gap of a source stands, until the record after it has come."""

    def take(self, tail: RingTail) -> None:
        """Read the rings to their end; writers go on meanwhile, so what came since this began ends it too."""
        began_at = time.monotonic_ns()
        num_read = DRAIN_RECORDS
        while num_read and self.newest_at < began_at and time.monotonic_ns() - began_at < MAX_READ_SECONDS * NS:
            num_before = len(self._kept)
            for source, fact in tail.drain(DRAIN_RECORDS):
                self._keep(source, fact)
            num_read = len(self._kept) - num_before

    def cut(self, begins_at: int) -> tuple[list[_Kept], list[_Kept]]:
        """What is before the span that begins then, and what belongs to it: of each source all from some place on.

        The end of a source always belongs to it: one that is dead has not come alive by being left out.
        """
        reaching = [
            received_at
            for request_id, received_at in self._received_at.items()
            if self._ended_at.get(request_id, begins_at) >= begins_at
        ]
        first_at = min([begins_at, *reaching])
        begun: set[Source] = set()
        left_out: list[_Kept] = []
        chosen: list[_Kept] = []
        for kept in self._kept:
            if kept.moment >= first_at:
                begun.add(kept.source)
            belongs = kept.source in begun or isinstance(kept.content, SourceGone)
            (chosen if belongs else left_out).append(kept)
        return left_out, chosen

    def _keep(self, source: Source, fact: Fact) -> None:
        before = self._moments.get(source, 0)
        if isinstance(fact, RecordsLost | SourceGone):
            if isinstance(fact, RecordsLost):
                self._gaps[source] = len(self._kept)
            self._kept.append(_Kept(source, before, fact))
            return
        # A record without a moment of its own belongs to what its process recorded before it.
        moment = self._moments[source] = moment_of(fact) or before
        if (gap := self._gaps.pop(source, None)) is not None:
            # It reaches up to here, so it belongs to a span that begins anywhere before.
            self._kept[gap] = self._kept[gap]._replace(moment=moment)
        self.newest_at = max(self.newest_at, moment)
        if isinstance(fact, RequestSubmitted):
            self._received_at[fact.request_id] = fact.received_at
        elif isinstance(fact, RequestEnded):
            self._ended_at[fact.request_id] = fact.ended_at
        self._kept.append(_Kept(source, moment, encode(fact)))


def _opening(left_out: list[_Kept], lasting: RunFacts) -> Iterator[_Kept]:
    """What a replay must know of that which is not in the recording; what lasts is added to the lasting facts."""
    for source, fact in opening_facts(_decoded(left_out, lasting)):
        yield _Kept(source, 0, fact if isinstance(fact, RecordsLost | SourceGone) else encode(fact))


def _decoded(left_out: list[_Kept], lasting: RunFacts) -> Iterator[tuple[Source, Fact]]:
    decoder = RecordDecoder()
    for source, _, content in left_out:
        fact = decoder.decode(content) if isinstance(content, bytes) else content
        if fact is None:
            continue
        if not isinstance(fact, RecordsLost | SourceGone):
            lasting.record(source, fact)
        yield source, fact


def _known_before(facts: Iterable[PinnedFact], chosen: list[_Kept]) -> Iterator[_Kept]:
    """The run's lasting facts that are not among the records themselves."""
    recorded = {(kept.source, kept.content) for kept in chosen if isinstance(kept.content, bytes)}
    for source, record in facts:
        payload = encode(record)
        if (source, payload) not in recorded:
            yield _Kept(source, moment_of(record), payload)


def _entries(kept: Iterable[_Kept]) -> Iterator[Entry]:
    numbers: dict[Source, int] = {}
    for source, _, content in kept:
        number = numbers.get(source)
        if number is None:
            number = numbers[source] = len(numbers)
            yield RecordedSource(*source)
        if isinstance(content, RecordsLost):
            yield RecordedLoss(number, content.num)
        elif isinstance(content, SourceGone):
            yield RecordedEnd(number)
        elif isinstance(content, bytes):
            yield RecordedFact(number, content)
