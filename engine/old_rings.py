"""The rings that dead processes of a run leave behind: the last ones are kept, so that restarts fill no disk."""

import contextlib
import re
from pathlib import Path

NUM_KEPT = 3
"""Of each process: the Observer reads one within a second of its end, and an incident has its own copy."""
_OLD_RING = re.compile(r"((?:EngineCore|Worker|APIServer)_\w+)\.\d+\.ring")


def prune_old_rings(run_dir: str, num_kept: int = NUM_KEPT) -> int:
    """Remove all but the last rings of each process that another has taken the place of; how many went.

    Their numbers do not tell their age, for the first that is free is taken; the change of their names does.
    """
    by_title: dict[str, list[tuple[int, Path]]] = {}
    with contextlib.suppress(OSError):
        for path in Path(run_dir).iterdir() if run_dir else ():
            if found := _OLD_RING.fullmatch(path.name):
                by_title.setdefault(found[1], []).append((path.stat().st_ctime_ns, path))
    old = [path for rings in by_title.values() for _, path in sorted(rings)[:-num_kept]]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)
