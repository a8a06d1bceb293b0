"""Areas: the address space of a process as the kernel lists it, and what each area is."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
KIB = 1024
MIB = 1024 * KIB
ARENA_BYTES = 64 * MIB
"""glibc's arenas begin at multiples of this, and no other mapping is put there but by chance."""
OBJECT_ARENA_BYTES = MIB
"""Python takes memory for its objects in pieces of this size; neighbours become one area."""
LARGE_BLOCK_BYTES = MIB
"""Above malloc's threshold for mappings: 128 KiB at first, raised later, and this where a server has set it."""
MAX_GUARD_BYTES = 64 * KIB
"""A thread's stack ends in so many bytes at most that nobody may touch."""
MODEL_FILES = (".gguf", ".safetensors", ".bin")
RINGS = (".ring",)

_WANTED = {"Rss:": 0, "Pss:": 1, "Anonymous:": 2}


class Area(NamedTuple):
    """One mapping. `anonymous_bytes` of the resident ones are the process's own: no file holds them."""

    begin: int
    end: int
    permissions: str
    path: str
    resident_bytes: int = 0
    pss_bytes: int = 0
    anonymous_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Addresses, not memory."""
        return self.end - self.begin


def read_areas(pid: int, proc: Path = PROC) -> list[Area]:
    """All areas of a process, by address. OSError where there is none or it may not be looked at."""
    with (proc / str(pid) / "smaps").open(encoding="utf-8", errors="replace") as lines:
        return list(parse_areas(lines))


def parse_areas(lines: Iterable[str]) -> Iterator[Area]:
    """The areas in the lines of an smaps file. ValueError where they are not one's."""
    area: Area | None = None
    sizes = [0, 0, 0]
    for line in lines:
        # Names of numbers begin with a capital letter, addresses do not.
        if not line[0].isupper():
            if area is not None:
                yield area._replace(resident_bytes=sizes[0], pss_bytes=sizes[1], anonymous_bytes=sizes[2])
            area, sizes = _head(line), [0, 0, 0]
            continue
        name, _, rest = line.partition(" ")
        place = _WANTED.get(name)
        if place is not None:
            sizes[place] = int(rest.split()[0]) * KIB
    if area is not None:
        yield area._replace(resident_bytes=sizes[0], pss_bytes=sizes[1], anonymous_bytes=sizes[2])


def _head(line: str) -> Area:
    addresses, permissions, _, _, _, *path = line.split(None, 5)
    begin, _, end = addresses.partition("-")
    return Area(int(begin, 16), int(end, 16), permissions, path[0].rstrip("\n") if path else "")


def kinds_of(areas: Sequence[Area], objects: Sequence[int] = ()) -> list[str]:
    """What each area is: libraries, model_files, rings, queues, stacks, heap, or empty where nothing tells.

    Files tell by their name; memory of no file by its shape: a stack lies above a small guard, malloc's arenas
    begin at multiples of 64 MiB or are the kernel's [heap], Python's are whole MiB, and a block that is too large
    for an arena is an area of its own. `objects` are addresses of Python's objects, in order: what holds one is
    heap as well.
    """
    kinds = [_kind(area, below) for area, below in zip(areas, [None, *areas], strict=False)]
    return [kind or _kind_by_objects(area, objects) for kind, area in zip(kinds, areas, strict=True)]


def _kind(area: Area, below: Area | None) -> str:
    if area.path.startswith("/"):
        return _kind_of_file(area.path, area.permissions)
    if area.path.startswith("[stack"):
        return "stacks"
    if area.path.startswith("[heap"):
        return "heap"
    if area.path.startswith("anon_inode:"):
        return "queues"
    if area.path.startswith("[v") or "x" in area.permissions:
        return "libraries"
    return _kind_by_shape(area, below)


def _kind_by_objects(area: Area, objects: Sequence[int]) -> str:
    place = bisect_left(objects, area.begin)
    return "heap" if place < len(objects) and objects[place] < area.end else ""


def _kind_of_file(path: str, permissions: str) -> str:
    name = path.removesuffix(" (deleted)")
    if name.endswith(RINGS):
        return "rings"
    if name.endswith(MODEL_FILES):
        return "model_files"
    return "queues" if "s" in permissions else "libraries"


def _kind_by_shape(area: Area, below: Area | None) -> str:
    if area.begin % ARENA_BYTES == 0 and area.num_bytes <= ARENA_BYTES:
        return "heap"
    if below is not None and below.end == area.begin:
        if below.permissions.startswith("---") and below.num_bytes <= MAX_GUARD_BYTES:
            return "stacks"
        # The part of a library's data that begins as zeros, and what has been joined to it.
        if below.path.startswith("/") and "w" in below.permissions:
            return "heap"
    is_large_block = area.num_bytes >= LARGE_BLOCK_BYTES and area.permissions == "rw-p"
    return "heap" if is_large_block or area.num_bytes % OBJECT_ARENA_BYTES == 0 else ""
