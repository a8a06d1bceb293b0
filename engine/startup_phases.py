"""StartupPhases: the parts of a process's start, each beginning where the one before it ended."""

import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessPhase

MAX_PARTS = 256
_DISK_BLOCK_BYTES = 512
"""What the kernel counts reads from storage in, whatever the file system's blocks are."""


class Usage(NamedTuple):
    """What a process used in some time: CPU time of all its threads, and bytes that came from storage."""

    cpu_seconds: float
    num_read_bytes: int


class Meter(Protocol):
    """Tells what was used since it was asked last."""

    def take(self) -> Usage:
        """What was used since the last time."""


class ProcessMeter:
    """What this process uses, from now on or since it was started."""

    def __init__(self, since_start: bool = False) -> None:
        self._before = Usage(0.0, 0) if since_start else _used()

    def take(self) -> Usage:
        """What was used since the last time."""
        before, self._before = self._before, _used()
        return Usage(
            self._before.cpu_seconds - before.cpu_seconds, self._before.num_read_bytes - before.num_read_bytes
        )


class NoMeter:
    """Where it is not known when what was used."""

    def take(self) -> Usage:
        """Nothing."""
        return Usage(0.0, 0)


def _used() -> Usage:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_inblock * _DISK_BLOCK_BYTES)


class Part(NamedTuple):
    """Something that took place within a phase."""

    name: str
    begun_at: int
    ended_at: int
    usage: Usage


_parts: deque[Part] = deque(maxlen=MAX_PARTS)
"""What has ended and no phase has taken over yet. Whoever loads something need not know who records it."""


@contextmanager
def startup_part(name: str) -> Iterator[None]:
    """What is done in here is a named part of the phase of start-up that it happens in."""
    begun_at, meter = time.monotonic_ns(), ProcessMeter()
    try:
        yield
    finally:
        _parts.append(Part(name, begun_at, time.monotonic_ns(), meter.take()))


class StartupPhases:
    """Records a process's start as phases without gaps: whatever happened since the last one is in the next."""

    def __init__(
        self,
        role: str,
        recorder: ProcessRecorder,
        begun_at: int,
        clock: Callable[[], int] = time.monotonic_ns,
        meter: Meter | None = None,
    ) -> None:
        self._role = role
        self._recorder = recorder
        self._clock = clock
        self._meter = meter or ProcessMeter()
        self._ended_at = begun_at

    def end(self, phase: str) -> float:
        """All since the last phase's end was this one, and it ends now; its seconds."""
        begun_at, self._ended_at = self._ended_at, self._clock()
        self._record_parts(begun_at)
        self._recorder.record(ProcessPhase(self._role, phase, begun_at, self._ended_at, *self._meter.take()))
        return (self._ended_at - begun_at) / 1e9

    def _record_parts(self, begun_at: int) -> None:
        """The inner ones come first. What ended before this phase began belongs to none that is recorded."""
        while _parts:
            part = _parts.popleft()
            if begun_at <= part.begun_at and part.ended_at <= self._ended_at:
                self._recorder.record(ProcessPhase(self._role, *part[:3], *part.usage))
