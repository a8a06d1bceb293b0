"""`vllm-obs startup` draws a start and the memory of a live run, or of the last one that has ended."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from observer_child import observer_over
from scripted_run import ScriptedRun

from vllm_obs.cli.main import main
from vllm_obs.cli.startup_memory import memory_lines
from vllm_obs.cli.startup_waterfall import WIDTH, span_bar, waterfall_lines
from vllm_obs.telemetry.records import MemorySampled

MS = 1_000_000
MIB = 1 << 20


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(tmp_path))
    directory = tmp_path / "20261129-120000-7"
    directory.mkdir()
    return directory


def test_a_live_run_is_asked(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedRun(run_dir) as run:
        run.start()
        with observer_over(run_dir):
            assert main(["startup"]) == 0
            shown = capsys.readouterr().out
            assert main(["startup", "--json"]) == 0
            views = json.loads(capsys.readouterr().out)
    assert shown.startswith("Ready 0.1 s after start")
    assert f"EngineCore_DP0 (pid {os.getpid()}): 0.100 s" in shown
    assert "in RAM in 3 processes" in shown
    assert set(views) == {"startup", "memory"}
    assert {each["role"] for each in views["memory"]["processes"]} == {"APIServer_0", "EngineCore_DP0", "Observer"}


def test_a_run_that_has_ended_is_read_from_what_it_left(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedRun(run_dir) as run:
        run.start()
        found = (["weights", "heap"], [60 * MIB, 30 * MIB], time.monotonic_ns())
        run.core.record(MemorySampled("EngineCore_DP0", os.getpid(), "", 100 * MIB, *found))
    for arguments in (["startup"], ["startup", "--run", str(run_dir)]):
        assert main(arguments) == 0
        shown = capsys.readouterr()
        assert shown.out.startswith("Ready 0.1 s after start")
        assert "100.0 MiB in RAM, 90.0 % accounted, as recorded last" in shown.out
        assert "  weights         60.0 MiB  60.0 %  ████████████████████████\n" in shown.out
        assert f"run {run_dir.name} has ended" in shown.err
        assert shown.out.endswith("The run has ended: of each process this is what was recorded last.\n")


def test_without_any_run_it_says_so(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["startup"]) == 1
    assert "no live run is known" in capsys.readouterr().err
    assert main(["startup", "--run", str(run_dir)]) == 1
    assert "holds no rings" in capsys.readouterr().err


def phase(name: str, begun_at: int, ended_at: int, **more: Any) -> dict[str, Any]:
    plain = {"depth": 0, "cpu_seconds": 0.0, "num_read_bytes": 0}
    seconds = (ended_at - begun_at) / 1e9
    times = {"begun_at": begun_at, "ended_at": ended_at, "seconds": seconds, "share": seconds / 10}
    return {"phase": name, **times, **plain, **more}


def process(role: str, pid: int, phases: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    plain = {"state": "ready", "is_later": False, "ready_at": 1, "accounted": 1.0, "unaccounted_seconds": 0.0}
    return {"role": role, "pid": pid, "begun_at": 0, "seconds": 10.0, "phases": phases, **plain, **more}


def test_the_waterfall_shows_what_the_run_hung_on() -> None:
    s = 1_000_000_000
    api = [
        phase("start process", 0, 5 * s, cpu_seconds=4.2, num_read_bytes=9_000_000),
        phase("wait", 5 * s, 10 * s),
    ]
    later = {"is_later": True, "ready_at": None, "state": "starting"}
    hung = [
        {"pid": 1, "begun_at": 0, "ended_at": 5 * s},
        {"pid": 2, "begun_at": 5 * s, "ended_at": 10 * s},
    ]
    view = {
        "says": "Ready.",
        "hints": ["Hint."],
        "run": {"critical_path": hung, "accounted": 0.9991},
        "processes": [
            process("APIServer_0", 1, api, unaccounted_seconds=0.5, accounted=0.95),
            process("Observer", 3, [phase("imports", 0, 10 * s, depth=1)], **later),
        ],
    }  # fmt: skip
    half, cpu = WIDTH // 2, "  cpu 4.20 s, 9 MB from storage"
    assert list(waterfall_lines(view)) == [
        "Ready.",
        "",
        "APIServer_0 (pid 1): 10.000 s, 95.00 % accounted",
        f"  {'start process':<26}    5.000 s  50.0 %  {'█' * half}{' ' * half}{cpu}",
        f"  {'wait':<26}    5.000 s  50.0 %  {' ' * half}{'░' * half}",
        f"  {'unaccounted':<26}    0.500 s   5.0 %",
        "",
        "Started later:",
        "",
        "Observer (pid 3): 10.000 s, 100.00 % accounted, not ready yet",
        f"  {'  imports':<26}   10.000 s 100.0 %  {'░' * WIDTH}",
        "",
        "99.91 % of the time to ready is accounted for.",
        "Hint.",
    ]


@pytest.mark.parametrize(
    ("span", "hung", "bar"),
    [
        ((0, 0), [], "░"),
        ((0, 1), [(0, 1)], "█"),
        ((4799, 4800), [(4799, 4800)], " " * (WIDTH - 1) + "█"),
        ((100, 300), [(200, 300)], " ░█"),
        ((0, 9999), [], "░" * WIDTH),
    ],
)
def test_a_bar_stays_within_its_width(span: tuple[int, int], hung: list[tuple[int, int]], bar: str) -> None:
    assert span_bar(span, hung, (0, WIDTH * 100)) == bar


def test_memory_is_told_with_what_is_reserved_and_what_is_left() -> None:
    cache_part = {"part": "kv_cache", "bytes": 25 * MIB, "share": 0.25, "allocated_bytes": 4096 * MIB}
    core = {
        "role": "EngineCore_DP0", "pid": 2, "is_measured": True, "resident_bytes": 100 * MIB, "accounted": 0.25,
        "parts": [cache_part], "unaccounted_bytes": 75 * MIB, "device_bytes": {"gpu_reserved": MIB},
    }  # fmt: skip
    names = ("reserved_bytes", "resident_bytes", "active_bytes", "cached_bytes")
    cache = {"engine": "0", **dict(zip(names, (4096 * MIB, 25 * MIB, 5 * MIB, 6 * MIB), strict=True))}
    limits = {
        "host_bytes": 8192 * MIB, "group_limit_bytes": 1024 * MIB, "group_used_bytes": 512 * MIB,
        "headroom_bytes": 512 * MIB,
    }  # fmt: skip
    total = {"resident_bytes": 100 * MIB, "pss_bytes": 90 * MIB, "accounted": 0.25}
    view = {
        "says": "S.", "processes": [core], "total": total, "kv_cache": [cache], "limits": limits, "hints": ["H."]
    }  # fmt: skip
    assert list(memory_lines(view)) == [
        "S.",
        "",
        "EngineCore_DP0 (pid 2): 100.0 MiB in RAM, 25.0 % accounted",
        f"  kv_cache        25.0 MiB  25.0 %  {'█' * 10}{' ' * 30}  of 4.00 GiB reserved",
        f"  unaccounted     75.0 MiB  75.0 %  {'█' * 30}",
        "  gpu_reserved     1.0 MiB",
        "",
        "100.0 MiB in all, 90.0 MiB with what they share counted once; 25.0 % accounted for.",
        "KV cache of engine 0: 4.00 GiB reserved, 25.0 MiB in RAM; sequences hold 5.0 MiB, 6.0 MiB are cached.",
        "The control group may use 1.00 GiB and uses 512.0 MiB; the machine has 8.00 GiB; "
        "512.0 MiB can still be taken.",
        "H.",
    ]  # fmt: skip
