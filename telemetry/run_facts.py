"""RunFacts: what was recorded once and holds for the whole run, kept in a file once the rings have lapped it."""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.record_codec import RecordDecoder, encode
from vllm_obs.telemetry.recording_file import (
    Entry,
    RecordedFact,
    RecordedSource,
    RecordingError,
    RecordingHeader,
    RecordingReader,
    write_recording,
)
from vllm_obs.telemetry.records import (
    EngineDescribed,
    EngineGivenUp,
    EngineRestarted,
    EngineStateChanged,
    MemorySampled,
    ProcessExited,
    ProcessPhase,
    ProcessReady,
    ProcessStarted,
    Record,
    TelemetrySet,
    WorkerLimits,
)
from vllm_obs.telemetry.view import BaseView, Source

FACTS_NAME = "run_facts.rec"
MAX_FACTS = 2048
"""The oldest go: a run whose engine was restarted very often."""
KINDS = (
    ProcessStarted,
    ProcessPhase,
    ProcessReady,
    ProcessExited,
    EngineDescribed,
    EngineGivenUp,
    EngineRestarted,
    EngineStateChanged,
    TelemetrySet,
    MemorySampled,
    WorkerLimits,
)

_logger = logging.getLogger(__name__)


class PinnedFact(NamedTuple):
    """A record that holds on, and whose it is."""

    source: Source
    record: Record


class RunFacts(BaseView):
    """The newest record of each lasting fact, in the order in which they were recorded."""

    record_kinds = KINDS

    def __init__(self, run_dir: Path | None, run: str) -> None:
        self._path = run_dir / FACTS_NAME if run_dir else None
        self._run = run
        self._facts: OrderedDict[tuple[object, ...], PinnedFact] = OrderedDict()
        self._is_saved = True
        for fact in read_run_facts(run_dir) if run_dir else ():
            self._facts[_key(fact)] = fact

    def __iter__(self) -> Iterator[PinnedFact]:
        """All facts, oldest first."""
        return iter(list(self._facts.values()))

    def __len__(self) -> int:
        return len(self._facts)

    def record(self, source: Source, record: Record) -> None:
        """Keep a lasting fact in the place of what it replaces."""
        if isinstance(record, KINDS):
            fact = PinnedFact(source, record)
            key = _key(fact)
            if self._facts.get(key) != fact:
                self._facts[key] = fact
                self._facts.move_to_end(key)
                self._is_saved = False
                if len(self._facts) > MAX_FACTS:
                    self._facts.popitem(last=False)

    def described(self, source: Source) -> EngineDescribed | None:
        """What an engine said of itself."""
        fact = self._facts.get((EngineDescribed, source.generation))
        return fact.record if fact is not None and isinstance(fact.record, EngineDescribed) else None

    def save(self, now: int, wall_at: int) -> None:
        """Write the file if anything is new; telemetry goes on without it where it cannot be written."""
        if self._is_saved or self._path is None:
            return
        self._is_saved = True
        try:
            write_recording(self._path, RecordingHeader(self._run, "", 0, now, wall_at, 0), _entries(self))
        except RecordingError as error:
            _logger.warning("%s", error)


def read_run_facts(run_dir: Path) -> list[PinnedFact]:
    """The facts in the file of a run directory; none where there is no file or it cannot be read."""
    decoder = RecordDecoder()
    sources: list[Source] = []
    facts: list[PinnedFact] = []
    try:
        with RecordingReader(run_dir / FACTS_NAME) as reader:
            for entry in reader.entries():
                if isinstance(entry, RecordedSource):
                    sources.append(Source(entry.role, entry.pid, entry.generation, entry.engine, entry.host))
                elif isinstance(entry, RecordedFact) and entry.source < len(sources):
                    record = decoder.decode(entry.payload)
                    if isinstance(record, KINDS):
                        facts.append(PinnedFact(sources[entry.source], record))
    except RecordingError:
        return []
    return facts[-MAX_FACTS:]


def _key(fact: PinnedFact) -> tuple[object, ...]:
    """What a later fact of the same kind takes the place of."""
    source, record = fact
    parts: tuple[object, ...] = ()
    if isinstance(record, ProcessPhase):
        parts = (record.role, record.phase, record.begun_at)
    elif isinstance(record, MemorySampled):
        parts = (record.role, record.pid, record.phase)
    elif isinstance(record, WorkerLimits):
        parts = (record.rank,)
    elif isinstance(record, EngineRestarted):
        parts = (record.engine, record.generation)
    elif isinstance(record, EngineGivenUp):
        parts = (record.engine, record.given_up_at)
    elif isinstance(record, ProcessStarted | ProcessReady | ProcessExited):
        parts = (record.role, record.pid)
    return (type(record), source.generation, *parts)


def _entries(facts: RunFacts) -> Iterator[Entry]:
    numbers: dict[Source, int] = {}
    for source, record in facts:
        if source not in numbers:
            numbers[source] = len(numbers)
            yield RecordedSource(*source)
        yield RecordedFact(numbers[source], encode(record))
