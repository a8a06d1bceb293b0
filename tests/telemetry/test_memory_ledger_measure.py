"""What is resident of a process is divided among its parts, by the kernel's tables, no byte counted twice."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_obs.telemetry.memory_ledger_holding import PARTS, Holding, Place
from vllm_obs.telemetry.memory_ledger_measure import Measured, measure
from vllm_obs.telemetry.memory_ledger_pages import ResidentPages
from vllm_obs.telemetry.memory_samples import object_ranges

PAGE = 4096
NUM_PAGES = 1000
HOLD = """
import sys
held = [b"%d" % number * 500 for number in range(20_000)]
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def block() -> Iterator[tuple[mmap.mmap, int]]:
    """A thousand pages of this process's own, and where they are."""
    with mmap.mmap(-1, NUM_PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        import ctypes

        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        del view
        yield memory, address


def written(memory: mmap.mmap, pages: range) -> None:
    for page in pages:
        memory[page * PAGE] = 1


def test_only_pages_that_were_written_are_resident(block: tuple[mmap.mmap, int]) -> None:
    memory, address = block
    written(memory, range(100, 350))
    assert memory[900 * PAGE] == 0  # read, which takes no memory
    with ResidentPages(os.getpid()) as pages:
        assert pages.num_bytes([(address, address + NUM_PAGES * PAGE)]) == 250 * PAGE
        assert pages.num_bytes([(address, address + 200 * PAGE)]) == 100 * PAGE
        assert pages.num_bytes([(address, address)]) == 0


def test_parts_with_addresses_are_what_is_resident_there(block: tuple[mmap.mmap, int]) -> None:
    memory, address = block
    written(memory, range(500))
    places = [
        Place(address, address + 100 * PAGE, "weights"),
        Place(address + 200 * PAGE, address + NUM_PAGES * PAGE, "kv_cache"),
    ]
    objects = [place[0] for place in object_ranges()]
    found = measure(Holding("Worker_TP0", os.getpid(), places=places, objects=objects))
    assert found is not None
    assert (found.parts["weights"], found.parts["kv_cache"]) == (100 * PAGE, 300 * PAGE)
    assert set(found.parts) <= set(PARTS)
    assert sum(found.parts.values()) + found.unaccounted_bytes == found.resident_bytes
    assert found.pss_bytes <= found.resident_bytes
    assert found.unaccounted_bytes < 0.1 * found.resident_bytes


@pytest.fixture
def holder() -> Iterator[int]:
    """A process with a heap of 50 MB and few libraries. What this one has depends on the tests before."""
    command = [sys.executable, "-S", "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate(timeout=20)


def test_what_a_part_of_the_start_added_is_taken_from_the_heap(holder: int) -> None:
    plain = measure(Holding("APIServer_0", holder))
    added = {"libraries": 20_000_000, "tokenizer": 1_000_000}
    split = measure(Holding("APIServer_0", holder, added=added))
    all_of_it = measure(Holding("APIServer_0", holder, added={"libraries": 10**15, "tokenizer": 5}))
    assert plain is not None
    assert split is not None
    assert all_of_it is not None
    assert "tokenizer" not in plain.parts
    assert split.parts["tokenizer"] == 1_000_000
    assert plain.parts["libraries"] < split.parts["libraries"] < plain.parts["libraries"] + 20_000_001
    # No part is larger than what there is.
    assert set(all_of_it.parts) & {"heap", "tokenizer"} == set()
    assert all_of_it.resident_bytes >= sum(all_of_it.parts.values())


def test_a_process_that_is_gone_or_hidden_is_not_measured(tmp_path: Path) -> None:
    assert measure(Holding("APIServer_0", 2**22 + 1)) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps").write_text("nonsense\n")
    (tmp_path / "7/pagemap").write_bytes(b"")
    assert measure(Holding("APIServer_0", 7), tmp_path) is None
    (tmp_path / "7/smaps").write_text("")
    assert measure(Holding("APIServer_0", 7), tmp_path) == Measured(0, 0, {})
