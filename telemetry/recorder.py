"""Recorders: the one verb of the hot path, `record(...)`, and where the facts go."""

from collections import deque
from typing import Protocol

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import Record


class Recorder(Protocol):
    """Takes facts from a process's main loop. Never blocks, never raises."""

    def record(self, record: Record) -> None:
        """Keep one fact."""


class ProcessRecorder(Recorder, Protocol):
    """A recorder that also shows what its process is doing right now. None of these blocks or raises."""

    def heartbeat(self, now: int) -> None:
        """The main loop went round at `now` (monotonic ns)."""

    def begin_step(self, step: int) -> None:
        """The process is in this step now."""

    def doing(self, activity: Activity) -> None:
        """What the process does from now on."""

    def advance(self) -> None:
        """Something moved within the step, such as one layer."""

    def close(self) -> None:
        """The process ends in order; what is recorded after this is dropped."""


class _NoStatus:
    """The part of a ProcessRecorder that shows nothing."""

    def heartbeat(self, now: int) -> None:
        """Show nothing."""

    def begin_step(self, step: int) -> None:
        """Show nothing."""

    def doing(self, activity: Activity) -> None:
        """Show nothing."""

    def advance(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing to let go of."""


class NullRecorder(_NoStatus):
    """Keeps nothing; chosen at construction where recording is switched off."""

    def record(self, record: Record) -> None:
        """Drop the fact."""


class MemoryRecorder(_NoStatus):
    """Keeps the last `capacity` facts in memory, for tests and for a process without a ring."""

    def __init__(self, capacity: int = 65_536) -> None:
        self.records: deque[Record] = deque(maxlen=capacity)

    def record(self, record: Record) -> None:
        """Append the fact; the oldest goes when the capacity is reached."""
        self.records.append(record)

    def of(self, kind: type[Record]) -> list[Record]:
        """All kept facts of one kind, oldest first."""
        return [record for record in self.records if isinstance(record, kind)]
