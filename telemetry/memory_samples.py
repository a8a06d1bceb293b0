"""MemorySamples: what a process records of its own memory while it starts, and where the parts of it lie."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import MemorySampled

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_RANGES = 2048
"""Of one part, in a record; a model has a few hundred storages, and neighbours are one range."""
_STATM = Path("/proc/self/statm")

Range = tuple[int, int]
"""First byte and length."""
Ranges = Sequence[Range]


OBJECTS = "objects"
"""No part: some of Python's objects, by which the areas that it keeps them in can be told."""
OBJECT_ARENA_BYTES = 1 << 20
NUM_OBJECTS_A_MODULE = 8
_OBJECT_BYTES = 16


class Resident(NamedTuple):
    """Memory of a process that is in RAM; `anonymous_bytes` of it belong to no file and are nobody else's."""

    num_bytes: int
    anonymous_bytes: int


def resident_memory() -> Resident:
    """This process's, from one small file that costs the kernel nothing to make; zeros where there is none."""
    try:
        fields = [int(field) * PAGE_BYTES for field in _STATM.read_text().split()]
        return Resident(fields[1], fields[1] - fields[2])
    except (OSError, ValueError, IndexError):
        return Resident(0, 0)


class MemorySamples:
    """Records what each part of a start added, and at its end where the parts lie."""

    def __init__(self, role: str, recorder: Recorder, measure: Callable[[], Resident] = resident_memory) -> None:
        """All that the process holds so far is part of what is recorded first."""
        self._role = role
        self._recorder = recorder
        self._measure = measure
        self._before = 0

    def added(self, phase: str, part: str) -> None:
        """All memory of its own that the process took since the last time is of this part."""
        resident = self._measure()
        num_added = max(0, resident.anonymous_bytes - self._before)
        self._before = resident.anonymous_bytes
        self._record(phase, resident, {part: num_added})

    def placed(self, phase: str, parts: Mapping[str, Ranges], elsewhere: Mapping[str, int] | None = None) -> None:
        """The start is over: here the parts lie. `elsewhere` are bytes of parts that are on a device."""
        joined = {part: join_ranges(ranges) for part, ranges in parts.items()}
        sizes = {part: sum(length for _, length in ranges) for part, ranges in joined.items()}
        joined[OBJECTS] = object_ranges()
        columns = [[number for place in ranges for number in place] for ranges in joined.values()]
        others = dict(elsewhere or {})
        self._record(phase, self._measure(), {**sizes, OBJECTS: 0, **others}, [*columns, *([] for _ in others)])

    def _record(
        self, phase: str, resident: Resident, sizes: Mapping[str, int], ranges: Sequence[list[int]] = ()
    ) -> None:
        self._recorder.record(
            MemorySampled(
                role=self._role,
                pid=os.getpid(),
                phase=phase,
                resident_bytes=resident.num_bytes,
                parts=list(sizes),
                part_bytes=list(sizes.values()),
                sampled_at=time.monotonic_ns(),
                ranges=list(ranges),
            )
        )


def object_ranges() -> list[Range]:
    """One object of each MiB of addresses where modules have some: they lie in all that imports took."""
    found: dict[int, int] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for value in list(vars(module).values())[:NUM_OBJECTS_A_MODULE]:
                found.setdefault(id(value) // OBJECT_ARENA_BYTES, id(value))
    return [(address, _OBJECT_BYTES) for address in sorted(found.values())[:MAX_RANGES]]


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The pages that these ranges touch, in order, neighbours and overlaps as one; the largest if too many."""
    joined: list[tuple[int, int]] = []
    for begin, length in sorted(ranges):
        first, end = begin // PAGE_BYTES * PAGE_BYTES, -(-(begin + length) // PAGE_BYTES) * PAGE_BYTES
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif length:
            joined.append((first, end))
    kept = sorted(joined, key=lambda place: place[0] - place[1])[:MAX_RANGES]
    return [(first, end - first) for first, end in sorted(kept)]
