"""Recorders: the one verb of the hot path, `record(...)`, and where the facts go."""

from collections import deque
from typing import Protocol

from vllm_obs.telemetry.records import Record


class Recorder(Protocol):
    """Takes facts from a process's main loop. Never blocks, never raises."""

    def record(self, record: Record) -> None:
        """Keep one fact."""


class NullRecorder:
    """Keeps nothing; chosen at construction where recording is switched off."""

    def record(self, record: Record) -> None:
        """Drop the fact."""


class MemoryRecorder:
    """Keeps the last `capacity` facts in memory, for tests and for a process without a ring."""

    def __init__(self, capacity: int = 65_536) -> None:
        self.records: deque[Record] = deque(maxlen=capacity)

    def record(self, record: Record) -> None:
        """Append the fact; the oldest goes when the capacity is reached."""
        self.records.append(record)

    def of(self, kind: type[Record]) -> list[Record]:
        """All kept facts of one kind, oldest first."""
        return [record for record in self.records if isinstance(record, kind)]
