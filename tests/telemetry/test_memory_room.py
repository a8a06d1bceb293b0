"""The memory that a server may use: its control group's where that is the tighter, else the machine's."""

from pathlib import Path

import pytest

from vllm_obs.telemetry.memory_room import MemoryRoom, MemoryRoomReader

PID = 7
MACHINE = {"proc/meminfo": "MemTotal:  8192 kB\nMemFree:  10 kB\nMemAvailable:  2048 kB\n"}
GROUP_2 = {"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "oom_kill 0\n"}
GROUP_1 = {"proc/7/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill 0\n"}


def room(root: Path, files: dict[str, str]) -> MemoryRoom:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return MemoryRoomReader(root).read(PID)


def test_a_group_of_version_2_less_cached_files(tmp_path: Path) -> None:
    numbers = {"memory.max": "4000000\n", "memory.current": "3000000\n", "memory.stat": "inactive_file 1000000\n"}
    files = {f"sys/fs/cgroup/a/{name}": text for name, text in numbers.items()}
    assert room(tmp_path, MACHINE | GROUP_2 | files) == MemoryRoom(4_000_000, 2_000_000)


def test_a_group_of_version_1_less_cached_files(tmp_path: Path) -> None:
    stat = "inactive_file 5\ntotal_inactive_file 1000000\n"
    numbers = {"memory.limit_in_bytes": "4000000\n", "memory.usage_in_bytes": "3000000\n", "memory.stat": stat}
    files = {f"sys/fs/cgroup/memory/a/{name}": text for name, text in numbers.items()}
    assert room(tmp_path, MACHINE | GROUP_1 | files) == MemoryRoom(4_000_000, 2_000_000)


@pytest.mark.parametrize("limit", ["max\n", "99999999\n"])
def test_the_machine_where_no_group_is_tighter(tmp_path: Path, limit: str) -> None:
    files = {"sys/fs/cgroup/a/memory.max": limit, "sys/fs/cgroup/a/memory.current": "3000000\n"}
    assert room(tmp_path, MACHINE | GROUP_2 | files) == MemoryRoom(8 << 20, 6 << 20)


def test_nothing_known_is_zeros(tmp_path: Path) -> None:
    assert room(tmp_path, {}) == MemoryRoom(0, 0)


def test_this_machine_has_some() -> None:
    limit, used = MemoryRoomReader().read(1)
    assert 0 < used < limit


def test_a_process_that_is_moved_to_another_group_is_followed(tmp_path: Path) -> None:
    numbers = {"memory.max": "4000000\n", "memory.current": "3000000\n"}
    files = {f"sys/fs/cgroup/a/{name}": text for name, text in numbers.items()}
    room(tmp_path, MACHINE | GROUP_2 | files | {"sys/fs/cgroup/b/memory.events": "oom_kill 0\n"})
    reader = MemoryRoomReader(tmp_path)
    assert reader.read(PID) == MemoryRoom(4_000_000, 3_000_000)
    (tmp_path / "sys/fs/cgroup/a/memory.max").write_text("5000000\n")
    assert reader.read(PID) == MemoryRoom(5_000_000, 3_000_000)
    (tmp_path / "proc/7/cgroup").write_text("0::/b\n")
    assert reader.read(PID) == MemoryRoom(8 << 20, 6 << 20)
