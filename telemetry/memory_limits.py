"""What the kernel says of a process's memory: its group's limit and use, and whom it killed for lack of it."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
MAX_KNOWN = 64
NO_LIMIT = 1 << 60
"""Version 1 writes a little less than 2^63 where there is no limit."""


class MemoryLimits(NamedTuple):
    """A process's memory; 0 where something is not known or has no limit.

    `group` is its own control group; limit, use and peak are of the tightest of that and its parents.
    `num_oom_kills` counts the processes that were killed in its own for lack of memory, since that exists.
    """

    group: str
    num_oom_kills: int
    limit_bytes: int
    used_bytes: int
    peak_bytes: int
    resident_bytes: int
    address_limit_bytes: int


class MemoryReader:
    """Reads it, from control groups of version 1 or 2. `root` is where proc and sys are."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._known: dict[str, list[Path]] = {}
        """Folders by membership: to look for them takes longer than to read what is in them."""

    def read(self, pid: int) -> MemoryLimits | None:
        """A live process's; None where it has no group that counts."""
        groups = self.groups(pid)
        if not groups:
            return None
        tightest = min(groups, key=group_limit)
        limit = group_limit(tightest)
        return MemoryLimits(
            group=str(groups[0]),
            num_oom_kills=num_oom_kills(groups[0]),
            limit_bytes=limit if limit < NO_LIMIT else 0,
            used_bytes=group_use(tightest),
            peak_bytes=_number(tightest, "memory.peak", "memory.max_usage_in_bytes"),
            resident_bytes=_field(self._root / f"proc/{pid}/status", "VmRSS:") * 1024,
            address_limit_bytes=self._address_limit(pid),
        )

    def membership(self, pid: int) -> str:
        """In which control groups a live process is, in the kernel's words; a small part of what `read` costs."""
        return _text(self._root / f"proc/{pid}/cgroup")

    def groups(self, pid: int) -> list[Path]:
        """The folders of a live process's memory groups that are mounted here, its own first."""
        membership = self.membership(pid)
        if membership not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[membership] = self._find(membership)
        return self._known[membership]

    def _find(self, membership: str) -> list[Path]:
        found: list[Path] = []
        for line in membership.splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            for mount in self._mounts(controllers):
                group = mount / path.strip("/")
                above = [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
                found += [folder for folder in above if _is_counting(folder)]
        return found

    def _mounts(self, controllers: str) -> list[Path]:
        base = self._root / "sys/fs/cgroup"
        if not controllers:
            return [base, base / "unified"]
        return [base / "memory"] if "memory" in controllers.split(",") else []

    def _address_limit(self, pid: int) -> int:
        for line in _text(self._root / f"proc/{pid}/limits").splitlines():
            if line.startswith("Max address space"):
                soft = line.split()[3]
                return int(soft) if soft.isdigit() else 0
        return 0


def num_oom_kills(group: Path) -> int:
    """How many processes have been killed in this very group for lack of memory, as far as it tells."""
    files = ("memory.events.local", "memory.events", "memory.oom_control")
    # Without the first (before Linux 5.2) the second, of the groups below as well, is the best there is.
    path = next((group / name for name in files if (group / name).is_file()), group / files[-1])
    return _field(path, "oom_kill")


def _is_counting(folder: Path) -> bool:
    return (folder / "memory.events").is_file() or (folder / "memory.oom_control").is_file()


def group_limit(group: Path) -> int:
    """The bytes that a group may use, NO_LIMIT or a little less where it has no limit."""
    return _number(group, "memory.max", "memory.limit_in_bytes") or NO_LIMIT


def group_use(group: Path) -> int:
    """The bytes that a group uses, cached files among them."""
    return _number(group, "memory.current", "memory.usage_in_bytes")


def bytes_given_back(group: Path) -> int:
    """Those of them that are cached files nobody has used lately."""
    path = group / "memory.stat"
    return _field(path, "total_inactive_file") or _field(path, "inactive_file")


def _number(group: Path, *names: str) -> int:
    texts = (_text(group / name).strip() for name in names)
    return next((int(text) for text in texts if text.isdigit()), 0)


def _field(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, *values = line.split()
        if key == name and values and values[0].isdigit():
            return int(values[0])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
