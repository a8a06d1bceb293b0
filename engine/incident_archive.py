"""The incidents of dead runs that were pruned: small, without rings and recordings, kept for longer than those."""

import contextlib
import itertools
import shutil
import time
from pathlib import Path

INCIDENTS = "incidents"
"""The folder in which an Observer files what went wrong."""
RECORDING = "recording"
"""In an incident's folder: what is large."""
MARKER = "pruned"
MAX_RUNS = 20
MAX_BYTES = 50 * 1024 * 1024
_KEPT = frozenset({INCIDENTS, MARKER, "lock"})


def has_incidents(run: Path) -> bool:
    """Whether a run left any."""
    folder = run / INCIDENTS
    return folder.is_dir() and any(folder.iterdir())


def is_stripped(run: Path) -> bool:
    """Whether only a run's incidents are left."""
    return (run / MARKER).exists()


def strip(run: Path) -> bool:
    """Leave nothing of a dead run but its incidents; False, and nothing done, where it left none.

    The marker is written last: what a start that is killed here leaves is stripped by the next.
    """
    if not has_incidents(run):
        return False
    _clear(run)
    with contextlib.suppress(OSError):
        (run / MARKER).touch(mode=0o600)
    return True


def prune_stripped(runs: list[Path]) -> None:
    """Keep MAX_RUNS of these, newest first, and MAX_BYTES.

    The one that began soonest after the one before it goes: so the first of a crash loop stays, however long that
    goes on, and of loops that are over a few.
    """
    left = sorted(runs, key=begun_at)
    sizes = {run: _num_bytes(run) for run in left}
    while len(left) > MAX_RUNS or sum(sizes[run] for run in left) > MAX_BYTES:
        gaps = [begun_at(run) - begun_at(before) for before, run in itertools.pairwise(left)]
        gone = left.pop(1 + gaps.index(min(gaps)) if gaps else 0)
        shutil.rmtree(gone, ignore_errors=True)


def begun_at(run: Path) -> float:
    """When a run began, by its name (seconds since 1970)."""
    try:
        return time.mktime(time.strptime(run.name[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


def _clear(run: Path) -> None:
    for path in run.iterdir():
        if path.name not in _KEPT:
            _remove(path)
    for recording in run.glob(f"{INCIDENTS}/*/{RECORDING}"):
        _remove(recording)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _num_bytes(run: Path) -> int:
    total = 0
    for path in run.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total
