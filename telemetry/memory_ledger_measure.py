"""Measured: where the resident memory of a live process is, from the kernel's tables and what it recorded."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.memory_ledger_areas import PROC, Area, kinds_of, read_areas
from vllm_obs.telemetry.memory_ledger_holding import PARTS, Holding, Place
from vllm_obs.telemetry.memory_ledger_pages import ResidentPages


class Measured(NamedTuple):
    """`parts` are resident bytes by part, only those that there are; they share no byte.

    `pss_bytes` counts a page that several processes share by its share in each. `is_rough` says that only the sums
    were looked up, and the parts are those that were known before.
    """

    resident_bytes: int
    pss_bytes: int
    parts: dict[str, int]
    is_rough: bool = False

    @property
    def unaccounted_bytes(self) -> int:
        """What is in RAM and no part explains."""
        return max(0, self.resident_bytes - sum(self.parts.values()))


def measure(holding: Holding, proc: Path = PROC) -> Measured | None:
    """Look a process up, without its doing anything; None where it is gone or may not be looked at.

    Files, rings and stacks are the kernel's word; weights, cache and buffers are the pages in RAM of the addresses
    that the process recorded; libraries are their files and what the imports added to the heap; the tokenizer is
    what loading it added; heap is what the allocators' areas hold beyond that.
    """
    try:
        areas = read_areas(holding.pid, proc)
        kinds = kinds_of(areas, holding.objects)
        with ResidentPages(holding.pid, proc) as pages:
            found = Counter[str]()
            for kind, num_bytes in _split(zip(areas, kinds, strict=True), holding.places, pages):
                found[kind] += num_bytes
    except (OSError, ValueError):
        return None
    return Measured(
        resident_bytes=sum(area.resident_bytes for area in areas),
        pss_bytes=sum(area.pss_bytes for area in areas),
        parts=_parts(found, holding, _own_bytes_of_libraries(areas, kinds)),
    )


def _split(
    areas: Iterable[tuple[Area, str]], places: Sequence[Place], pages: ResidentPages
) -> Iterator[tuple[str, int]]:
    """Each area's resident bytes: what of it is at recorded addresses, and the rest under its own kind."""
    first = 0
    for area, kind in areas:
        left = area.resident_bytes
        while first < len(places) and places[first].end <= area.begin:
            first += 1
        number = first
        while left and number < len(places) and places[number].begin < area.end:
            place = places[number]
            num_bytes = min(left, _resident_in(area, place, pages))
            left -= num_bytes
            yield place.part, num_bytes
            number += 1
        yield kind, left


def _resident_in(area: Area, place: Place, pages: ResidentPages) -> int:
    if place.begin <= area.begin and area.end <= place.end:
        return area.resident_bytes
    return pages.num_bytes([(max(place.begin, area.begin), min(place.end, area.end))])


def _own_bytes_of_libraries(areas: Sequence[Area], kinds: Sequence[str]) -> int:
    """What processes write into their copy of a library's data: in the files' areas, not in the heap."""
    return sum(area.anonymous_bytes for area, kind in zip(areas, kinds, strict=True) if kind == "libraries")


def _parts(found: Counter[str], holding: Holding, own_bytes: int) -> dict[str, int]:
    """What imports and the tokenizer added may lie outside the heap too: large blocks have areas of their own."""
    heap = found["heap"]
    taken = heap + found[""]
    imported = min(taken, max(0, holding.added.get("libraries", 0) - own_bytes))
    tokenizer = min(taken - imported, holding.added.get("tokenizer", 0))
    sizes = {
        **found,
        "libraries": found["libraries"] + imported,
        "tokenizer": tokenizer,
        "heap": max(0, heap - imported - tokenizer),
    }
    return {part: sizes[part] for part in PARTS if sizes.get(part)}
