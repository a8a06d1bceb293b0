"""An address space is read as the kernel lists it; each area is told by its file, its shape or what it holds."""

import os
from collections import Counter

import pytest

from vllm_obs.telemetry.memory_ledger_areas import MIB, Area, kinds_of, parse_areas, read_areas

TEXT = """\
55d0a0000000-55d0a0001000 r-xp 00000000 fd:01 12   /usr/bin/a b
Size:                  4 kB
Rss:                   4 kB
Pss:                   2 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Rss:                1024 kB
Pss:                1024 kB
Anonymous:          1024 kB
"""


def area(begin: int, num_bytes: int, permissions: str = "rw-p", path: str = "") -> Area:
    return Area(begin, begin + num_bytes, permissions, path)


def test_areas_are_read_with_what_is_resident_of_them() -> None:
    assert list(parse_areas(TEXT.splitlines(keepends=True))) == [
        Area(0x55D0A0000000, 0x55D0A0001000, "r-xp", "/usr/bin/a b", 4096, 2048, 0),
        Area(0x7F0000000000, 0x7F0000200000, "rw-p", "", MIB, MIB, MIB),
    ]
    assert list(parse_areas([])) == []


@pytest.mark.parametrize("text", ["no map\n", "12-zz rw-p 0 0 0\n"])
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is Python's
        list(parse_areas([text]))


@pytest.mark.parametrize(
    ("path", "permissions", "kind"),
    [
        ("/usr/lib/libc.so.6", "r-xp", "libraries"),
        ("/usr/lib/libc.so.6", "rw-p", "libraries"),
        ("/tmp/run/EngineCore_DP0.ring", "rw-s", "rings"),
        ("/models/m.gguf", "r--s", "model_files"),
        ("/models/model-1.safetensors", "r--p", "model_files"),
        ("/memfd:plans (deleted)", "rw-s", "queues"),
        ("anon_inode:[io_uring]", "rw-s", "queues"),
        ("[heap]", "rw-p", "heap"),
        ("[stack]", "rw-p", "stacks"),
        ("[vdso]", "r-xp", "libraries"),
        ("", "r-xp", "libraries"),
    ],
)
def test_files_and_names_tell(path: str, permissions: str, kind: str) -> None:
    assert kinds_of([area(4096, 4096, permissions, path)]) == [kind]


def test_memory_of_no_file_is_told_by_its_shape() -> None:
    arena = 64 * MIB
    areas = [
        area(1 * MIB, 4096, "---p"),
        area(1 * MIB + 4096, 200 * 4096),
        area(arena, 3 * 4096),
        area(2 * arena + 5 * 4096, 2 * MIB),
        area(3 * arena + 4096, 4096, "rw-p", "/lib/a.so"),
        area(3 * arena + 8192, 4096),
        area(4 * arena + 4096, 4096),
        area(5 * arena + 4096, 4096),
    ]
    assert kinds_of(areas) == ["", "stacks", "heap", "heap", "libraries", "heap", "", ""]
    assert kinds_of(areas, [4 * arena, 4 * arena + 8191, 5 * arena + 8192])[-2:] == ["heap", ""]


def test_this_process_is_mostly_libraries_and_heap() -> None:
    areas = read_areas(os.getpid())
    sizes = Counter[str]()
    for each, kind in zip(areas, kinds_of(areas), strict=True):
        sizes[kind] += each.resident_bytes
    assert sizes["libraries"] > 4 * MIB
    assert sizes["heap"] > 4 * MIB


def test_a_process_that_is_gone_cannot_be_read() -> None:
    with pytest.raises(OSError, match="No such file"):
        read_areas(2**22 + 1)


@pytest.mark.parametrize(
    ("num_bytes", "permissions", "kind"),
    [(3 * MIB + 4096, "rw-p", "heap"), (3 * MIB + 4096, "r--p", ""), (MIB // 2 + 4096, "rw-p", "")],
)
def test_a_block_too_large_for_an_arena_is_heap(num_bytes: int, permissions: str, kind: str) -> None:
    begin = 0x7F0000123000
    assert kinds_of([Area(begin, begin + num_bytes, permissions, "")]) == [kind]
