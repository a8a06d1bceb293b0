"""A glance at a large process: its sums as the kernel adds them up, and its parts as they were known before."""

from collections.abc import Mapping
from pathlib import Path

from vllm_obs.telemetry.memory_ledger_areas import KIB, PROC
from vllm_obs.telemetry.memory_ledger_holding import PARTS, Holding
from vllm_obs.telemetry.memory_ledger_measure import Measured, measure
from vllm_obs.telemetry.memory_ledger_pages import PAGE_BYTES

LARGE_BYTES = 8 << 30
"""To list the areas of a process with more than this in RAM takes the kernel a good part of a second."""
_GROWING = "kv_cache"
"""Of what a process has allocated this part alone may not be in RAM."""


def glance(
    holding: Holding, known: Mapping[str, int] | None, proc: Path = PROC, large_bytes: int = LARGE_BYTES
) -> Measured | None:
    """Measure a process, a large one roughly; None where it is gone or may not be looked at.

    The kernel adds the pages of a large one up without holding on to its areas all the while. `known` are the
    sizes of its parts when they were looked up last, None if they never were: then those that it recorded count.
    """
    try:
        if _resident_bytes(holding.pid, proc) <= large_bytes:
            return measure(holding, proc)
        resident, shared = _sums(holding.pid, proc)
    except (OSError, ValueError, IndexError, KeyError):
        return measure(holding, proc)
    return Measured(resident, shared, _fitting(_recorded(holding) if known is None else known, resident), True)


def resident_bytes(pid: int, proc: Path = PROC) -> int:
    """What a process has in RAM, from one small file; 0 where it is gone or that may not be known."""
    try:
        return _resident_bytes(pid, proc)
    except (OSError, ValueError, IndexError):
        return 0


def _resident_bytes(pid: int, proc: Path) -> int:
    return int((proc / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES


def _sums(pid: int, proc: Path) -> tuple[int, int]:
    """What is in RAM, and the same with shared pages by their shares."""
    lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    sizes = {words[0]: words[1] for line in lines if len(words := line.split()) > 1}
    return int(sizes["Rss:"]) * KIB, int(sizes["Pss:"]) * KIB


def _recorded(holding: Holding) -> dict[str, int]:
    return {**holding.added, **holding.allocated}


def _fitting(sizes: Mapping[str, int], resident: int) -> dict[str, int]:
    """These sizes, cut where together they would be more than there is; first the part that grows."""
    found: dict[str, int] = {}
    for part in sorted(PARTS, key=lambda part: part == _GROWING):
        num_bytes = min(sizes.get(part, 0), resident - sum(found.values()))
        if num_bytes:
            found[part] = num_bytes
    return {part: found[part] for part in PARTS if part in found}
