"""Free memory and cores are the least that the host and any control group above the process leave."""

import os
from pathlib import Path

import pytest

from vllm_obs.engine.worker.host import free_memory_bytes, return_freed_memory, usable_cores


def host(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9999 kB\nMemAvailable: 1000 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups_the_host_s_available_memory_counts(tmp_path: Path) -> None:
    assert free_memory_bytes(host(tmp_path, {})) == 1000 * 1024


@pytest.mark.parametrize("folder", ["", "pod/", "pod/inner/"])
def test_a_v2_limit_anywhere_above_counts_with_page_cache_as_free(tmp_path: Path, folder: str) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/inner\n",
        "sys/fs/cgroup/pod/inner/memory.max": "max\n",
        f"sys/fs/cgroup/{folder}memory.max": "500000\n",
        f"sys/fs/cgroup/{folder}memory.current": "400000\n",
        f"sys/fs/cgroup/{folder}memory.stat": "anon 5\ninactive_file 30000\n",
    }
    assert free_memory_bytes(host(tmp_path, files)) == 130_000


def test_a_v1_limit_counts_where_the_named_folder_is_not_mounted(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:name=systemd:/x\n4:memory:/docker/abc\n1:cpu,cpuacct:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "300000",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "200000",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1000\n",
    }
    assert free_memory_bytes(host(tmp_path, files)) == 101_000


def test_an_exceeded_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1000",
        "sys/fs/cgroup/memory.current": "5000",
    }
    assert free_memory_bytes(host(tmp_path, files)) == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 64),
        (
            {
                "proc/self/cgroup": "1:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}, 64),
        ({}, 64),
    ],
)
def test_cores_are_bounded_by_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores(host(tmp_path, files)) == cores


def test_this_host_has_some_of_both() -> None:
    assert free_memory_bytes() > 0
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_freed_memory_goes_back_without_harm() -> None:
    kept = [bytes(10_000) for _ in range(1000)]
    del kept[::2]
    return_freed_memory()
    assert all(block == bytes(10_000) for block in kept)
