"""MemoryRoom: how much memory the server may use, and how much of it is in use, as an alert should count it."""

import re
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.memory_limits import NO_LIMIT, ROOT, MemoryReader, bytes_given_back, group_limit, group_use

_SIZES = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+)", re.MULTILINE)
"""Of the machine, in KiB."""


class MemoryRoom(NamedTuple):
    """Zeros where nothing is known. Cached files that nobody holds are not in use: the kernel gives them back."""

    limit_bytes: int
    used_bytes: int


class MemoryRoomReader:
    """Reads the tightest control group of a process, or the machine where none has a limit below it."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._groups = MemoryReader(root)

    def read(self, pid: int) -> MemoryRoom:
        """The room that this process and those beside it have."""
        machine = self._machine()
        tightest = min(self._groups.groups(pid), key=group_limit, default=None)
        if tightest is None or group_limit(tightest) >= (machine.limit_bytes or NO_LIMIT):
            return machine
        return MemoryRoom(group_limit(tightest), max(0, group_use(tightest) - bytes_given_back(tightest)))

    def _machine(self) -> MemoryRoom:
        try:
            found = _SIZES.findall((self._root / "proc/meminfo").read_text())
            sizes = {name: int(size) * 1024 for name, size in found}
            return MemoryRoom(sizes["MemTotal"], sizes["MemTotal"] - sizes["MemAvailable"])
        except (OSError, ValueError, KeyError):
            return MemoryRoom(0, 0)
