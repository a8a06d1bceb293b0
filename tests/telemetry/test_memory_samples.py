"""A process records what each part of its start added to its memory, and where the parts lie."""

import mmap
import os
from types import ModuleType

import pytest

from vllm_obs.telemetry.memory_samples import (
    MAX_RANGES,
    OBJECTS,
    PAGE_BYTES,
    MemorySamples,
    Resident,
    join_ranges,
    object_ranges,
    resident_memory,
)
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import MemorySampled


def samples(recorder: MemoryRecorder) -> list[MemorySampled]:
    return [record for record in recorder.records if isinstance(record, MemorySampled)]


def test_each_part_is_what_came_since_the_last() -> None:
    recorder = MemoryRecorder()
    sizes = iter([Resident(100, 60), Resident(170, 80), Resident(160, 70)])
    memory = MemorySamples("APIServer_0", recorder, lambda: next(sizes))
    memory.added("imports", "libraries")
    memory.added("load tokenizer", "tokenizer")
    memory.added("after", "heap")
    found = [(each.phase, each.resident_bytes, each.parts, each.part_bytes) for each in samples(recorder)]
    assert found == [
        ("imports", 100, ["libraries"], [60]),
        ("load tokenizer", 170, ["tokenizer"], [20]),
        ("after", 160, ["heap"], [0]),
    ]
    told = [(each.role, each.pid, each.ranges) for each in samples(recorder)]
    assert told == [("APIServer_0", os.getpid(), [])] * 3


def test_parts_are_told_with_their_addresses() -> None:
    recorder = MemoryRecorder()
    memory = MemorySamples("Worker_TP0", recorder, lambda: Resident(9, 8))
    memory.placed("warm-up", {"weights": [(4096, 10), (8192, 4096)], "kv_cache": []}, {"gpu_reserved": 7})
    (found,) = samples(recorder)
    assert found.parts == ["weights", "kv_cache", OBJECTS, "gpu_reserved"]
    assert found.part_bytes == [8192, 0, 0, 7]
    assert (found.ranges[0], found.ranges[1], found.ranges[3]) == ([4096, 8192], [], [])
    assert id(ModuleType) // 2**20 in {address // 2**20 for address in found.ranges[2][::2]}


@pytest.mark.parametrize(
    ("ranges", "joined"),
    [
        ([], []),
        ([(5, 0)], []),
        ([(1, 1)], [(0, PAGE_BYTES)]),
        ([(PAGE_BYTES, 1), (0, 1)], [(0, 2 * PAGE_BYTES)]),
        ([(0, 10 * PAGE_BYTES), (PAGE_BYTES, 1)], [(0, 10 * PAGE_BYTES)]),
        ([(0, 1), (2 * PAGE_BYTES, 1)], [(0, PAGE_BYTES), (2 * PAGE_BYTES, PAGE_BYTES)]),
    ],
)
def test_ranges_are_whole_pages_and_none_twice(
    ranges: list[tuple[int, int]], joined: list[tuple[int, int]]
) -> None:
    assert join_ranges(ranges) == joined


def test_ranges_are_bounded_and_the_largest_stay() -> None:
    scattered = [(2 * number * PAGE_BYTES, 1) for number in range(2 * MAX_RANGES)]
    large = (10**12 // PAGE_BYTES * PAGE_BYTES, 5 * PAGE_BYTES)
    found = join_ranges([*scattered, large])
    assert len(found) == MAX_RANGES
    assert found[-1] == large
    assert len(object_ranges()) <= MAX_RANGES


def test_the_resident_memory_of_this_process_is_known() -> None:
    before = resident_memory()
    # Of the kernel's own: what the allocator has free it would give out again without growing.
    with mmap.mmap(-1, 32 << 20) as block:
        block.write(b"x" * len(block))
        grown = resident_memory()
        assert grown.anonymous_bytes + grown.num_bytes - before.anonymous_bytes - before.num_bytes > 0.9 * len(
            block
        )
    assert grown.num_bytes > grown.anonymous_bytes
