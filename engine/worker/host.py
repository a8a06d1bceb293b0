"""What this process may use of its host: free memory and cores, with the limits of its control groups."""

import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def free_memory_bytes(root: Path = ROOT) -> int:
    """Bytes that can be taken without swapping or meeting a control group's limit (v1 or v2)."""
    free = [_meminfo_available(root), *_group_free_memory(root)]
    return max(0, min(free))


def usable_cores(root: Path = ROOT) -> int:
    """Cores this process is allowed on, at least 1: its affinity, or its control groups' quota if that is less."""
    return max(1, min(len(os.sched_getaffinity(0)), *_group_cores(root)))


def _meminfo_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_free_memory(root: Path) -> Iterator[int]:
    """Limit less use of each control group above this process; page cache that can go counts as free."""
    for group in _groups(root, ""):
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            yield limit - used + _statistic(group / "memory.stat", "inactive_file")
    for group in _groups(root, "memory"):
        limit, used = _number(group / "memory.limit_in_bytes"), _number(group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            yield limit - used + _statistic(group / "memory.stat", "total_inactive_file")


def _group_cores(root: Path) -> Iterator[int]:
    """Quota over period, rounded up, of each control group that has one."""
    yield os.cpu_count() or 1
    for group in _groups(root, ""):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            yield math.ceil(int(quota) / int(period))
    for group in _groups(root, "cpu"):
        quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota_us is not None and quota_us > 0 and period_us:
            yield math.ceil(quota_us / period_us)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group and its parents, in the hierarchy of `controller` ("" is v2's).

    Inside a container the path may name folders that are not mounted; those are passed over.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controller
        group = mount / path.strip("/")
        yield from (
            folder for folder in (group, *group.parents) if folder.is_relative_to(mount) and folder.is_dir()
        )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """The file's number; None when there is no file or no limit ("max")."""
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def return_freed_memory() -> None:
    """Give back to the system what the C library keeps of freed memory; loading leaves a lot. glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
