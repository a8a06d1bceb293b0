"""RecordingTail: reads a saved recording as the Observer reads the rings of a live run."""

from collections.abc import Iterator
from pathlib import Path

from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.recording_file import (
    Entry,
    RecordedEnd,
    RecordedFact,
    RecordedLoss,
    RecordedSource,
    RecordingReader,
)
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

MAX_SOURCES = 4096


class RecordingTail:
    """The facts of a recording, once, in the order in which they were saved.

    `num_bad_entries` counts those that name no source or are no record. Raises RecordingError.
    """

    def __init__(self, path: Path) -> None:
        self._reader = RecordingReader(path)
        self.header = self._reader.header
        self.num_bad_entries = 0
        self._decoder = RecordDecoder()
        self._sources: list[Source] = []
        self._entries = self._reader.entries()

    @property
    def num_bad_bytes(self) -> int:
        """What could not be read of a cut or damaged file."""
        return self._reader.num_bad_bytes

    @property
    def defect(self) -> str:
        """Once everything was read: what is wrong with the file, in words; empty for a whole one."""
        if self._reader.is_whole and not self.num_bad_bytes and not self.num_bad_entries:
            return ""
        what = "is damaged" if self._reader.is_whole else "is cut: its end is missing"
        return f"the file {what} ({self.num_bad_bytes} bytes and {self.num_bad_entries} records cannot be read)"

    def drain(self, max_records: int) -> Iterator[tuple[Source, Fact]]:
        """The next facts, at most `max_records`; none at the end of the file."""
        num_given = 0
        while num_given < max_records:
            entry = next(self._entries, None)
            if entry is None:
                return
            found = self._taken(entry)
            if found is not None:
                num_given += 1
                yield found

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def _taken(self, entry: Entry) -> tuple[Source, Fact] | None:
        if isinstance(entry, RecordedSource):
            if len(self._sources) < MAX_SOURCES:
                self._sources.append(Source(entry.role, entry.pid, entry.generation, entry.engine, entry.host))
            return None
        fact = self._fact(entry)
        if fact is None or not 0 <= entry.source < len(self._sources):
            self.num_bad_entries += 1
            return None
        return self._sources[entry.source], fact

    def _fact(self, entry: RecordedFact | RecordedLoss | RecordedEnd) -> Fact | None:
        if isinstance(entry, RecordedLoss):
            return RecordsLost(entry.num)
        if isinstance(entry, RecordedEnd):
            return SourceGone()
        return self._decoder.decode(entry.payload)
