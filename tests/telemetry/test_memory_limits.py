"""A process's memory, from control groups of both versions, as far as each tells."""

from pathlib import Path

from vllm_obs.telemetry.memory_limits import MAX_KNOWN, MemoryLimits, MemoryReader, num_oom_kills

PID = 7


def write(root: Path, files: dict[str, str]) -> MemoryReader:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return MemoryReader(root)


PROCESS = {
    "proc/7/status": "Name:\tx\nVmRSS:\t    2048 kB\n",
    "proc/7/limits": "Limit  Soft  Hard  Units\nMax address space         1000000     unlimited   bytes\n",
}


def test_version_2_counts_kills_of_the_own_group_and_the_tightest_limit(tmp_path: Path) -> None:
    group, parent = "sys/fs/cgroup/a/b", "sys/fs/cgroup/a"
    reader = write(
        tmp_path,
        PROCESS
        | {
            "proc/7/cgroup": "0::/a/b\n",
            f"{group}/memory.events": "low 0\noom_kill 5\n",
            f"{group}/memory.events.local": "low 0\noom_kill 2\n",
            f"{group}/memory.max": "max\n",
            f"{parent}/memory.events": "oom_kill 9\n",
            f"{parent}/memory.max": "4096\n",
            f"{parent}/memory.current": "1024\n",
            f"{parent}/memory.peak": "2048\n",
        },
    )
    assert reader.read(PID) == MemoryLimits(
        group=str(tmp_path / group),
        num_oom_kills=2,
        limit_bytes=4096,
        used_bytes=1024,
        peak_bytes=2048,
        resident_bytes=2 << 20,
        address_limit_bytes=1_000_000,
    )
    assert num_oom_kills(tmp_path / parent) == 9


def test_version_1_beside_a_version_2_that_has_no_memory(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    reader = write(
        tmp_path,
        {
            "proc/7/cgroup": "9:name=systemd:/\n4:memory:/job\n1:cpu,cpuacct:/other\n0::/\n",
            f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            f"{group}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{group}/memory.usage_in_bytes": "77\n",
        },
    )
    assert reader.read(PID) == MemoryLimits(str(tmp_path / group), 3, 0, 77, 0, 0, 0)


def test_without_groups_or_without_the_process_nothing_is_known(tmp_path: Path) -> None:
    assert MemoryReader(tmp_path).read(PID) is None
    assert write(tmp_path, {"proc/7/cgroup": "4:memory:/not-mounted\nnonsense\n"}).read(PID) is None
    assert num_oom_kills(tmp_path / "gone") == 0


def test_folders_that_are_known_are_forgotten_before_they_are_many(tmp_path: Path) -> None:
    reader = MemoryReader(tmp_path)
    for pid in range(MAX_KNOWN + 1):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cgroup").write_text(f"0::/{pid}\n")
        group = tmp_path / f"sys/fs/cgroup/{pid}"
        group.mkdir(parents=True)
        (group / "memory.events").touch()
        assert reader.groups(pid) == reader.groups(pid) == [group]
        assert len(reader._known) <= MAX_KNOWN
