"""StackArchive: the stacks that were taken at a run's last stalls, one text file each."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from vllm_obs.telemetry.records import StallBegun

DIRECTORY = "stalls"
MAX_KEPT = 8
MAX_FILE_BYTES = 2 * 1024 * 1024


class StackArchive:
    """Files in RUN_DIR/stalls, for their owner's eyes only; the oldest go."""

    def __init__(self, run_dir: Path) -> None:
        self.directory = run_dir / DIRECTORY

    def save(self, stall: StallBegun, stacks: Mapping[str, str]) -> Path:
        """Write one down: what was said of the stall, and every process's stacks. Raises OSError."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        parts = [f"{stall.says}\n", *(f"== {title}\n{text}" for title, text in sorted(stacks.items()))]
        content = "\n".join(parts).encode(errors="replace")[:MAX_FILE_BYTES]
        path = self._path_of(stall)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        self._prune()
        return path

    def has(self, stall: StallBegun) -> bool:
        """Whether that one was written down and has not gone since."""
        return self._path_of(stall).exists()

    def _path_of(self, stall: StallBegun) -> Path:
        return self.directory / f"{stall.noticed_at:020d}-{stall.pid}.txt"

    def _prune(self) -> None:
        for path in sorted(self.directory.glob("*.txt"))[:-MAX_KEPT]:
            with contextlib.suppress(OSError):
                path.unlink()
