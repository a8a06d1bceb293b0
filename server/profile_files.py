"""Where a profile's files go: a directory of its own, and how many of them are kept."""

import shutil
import stat
import time
from pathlib import Path

from vllm_obs.engine.profile_order import is_profile_name

RUN_FOLDER = "profiles"
NUM_KEPT = 8
"""Of the run's own profiles the newest stay; in a directory of the user's nothing is ever removed."""
MAX_ATTEMPTS = 100


def profile_name(kind: str) -> str:
    """What a profile that begins now is called."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}"


def make_directory(run_dir: str, named: str, profile: str) -> Path:
    """A new directory for a profile, under the named one or the run's. OSError where it cannot be."""
    base = Path(named) if named else Path(run_dir) / RUN_FOLDER
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not named:
        _prune(base)
    for attempt in range(MAX_ATTEMPTS):
        path = base / (f"{profile}-{attempt}" if attempt else profile)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{MAX_ATTEMPTS} profiles are called {profile}")


def _prune(base: Path) -> None:
    """Make room for one more."""
    found = [path for path in base.iterdir() if is_profile_name(path.name) and stat.S_ISDIR(path.lstat().st_mode)]
    found.sort(key=lambda path: path.lstat().st_mtime_ns)
    for path in found[: max(0, len(found) - NUM_KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)
