"""Holding: what one process recorded of its memory: what parts of its start added, and where the parts lie."""

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_obs.telemetry.memory_samples import OBJECTS
from vllm_obs.telemetry.records import MemorySampled

MAPPED_PARTS = ("rings", "queues", "model_files", "stacks")
"""Parts that the kernel's list of a process's areas tells by itself."""
PLACED_PARTS = ("weights", "kv_cache", "activations")
"""Parts whose addresses the process recorded."""
PARTS = ("libraries", *PLACED_PARTS, "tokenizer", "heap", *MAPPED_PARTS)
"""All parts of what is resident. `heap` is what the allocators hold beyond the other parts."""
DEVICE_PARTS = ("gpu_reserved", "gpu_allocated")
UNACCOUNTED = "unaccounted"


class Place(NamedTuple):
    """Addresses of a part: the first, and the first beyond it."""

    begin: int
    end: int
    part: str


@dataclass(slots=True)
class Holding:
    """One process. `added` are bytes by part, `allocated` those of parts with addresses, whether in RAM or not."""

    role: str
    pid: int
    added: dict[str, int] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    """Addresses of some of Python's objects, in order."""
    last: MemorySampled | None = None
    """When all of it was looked up last."""

    def take(self, record: MemorySampled) -> None:
        """A sample of this process, its own or one that the Observer looked up."""
        sizes = dict(zip(record.parts, record.part_bytes, strict=False))
        if not record.phase:
            self.last = record
        elif record.ranges:
            self.allocated = {part: size for part, size in sizes.items() if part in PLACED_PARTS}
            self.device_bytes = {part: size for part, size in sizes.items() if part in DEVICE_PARTS}
            self.places = sorted(_places(record))
            self.objects = _addresses(record)
        else:
            self.added |= {part: size for part, size in sizes.items() if part in PARTS}


def _addresses(record: MemorySampled) -> list[int]:
    numbers = dict(zip(record.parts, record.ranges, strict=False)).get(OBJECTS, [])
    return sorted(numbers[::2])


def _places(record: MemorySampled) -> list[Place]:
    return [
        Place(begin, begin + length, part)
        for part, numbers in zip(record.parts, record.ranges, strict=False)
        if part in PLACED_PARTS
        for begin, length in zip(numbers[::2], numbers[1::2], strict=False)
    ]
