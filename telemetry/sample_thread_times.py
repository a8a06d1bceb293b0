"""The CPU time that each thread of another process has used, read from /proc."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from vllm_obs.telemetry.sample_set import ThreadSamples

PROC = Path("/proc")
MAX_THREADS = 1024

_USER_TICKS, _SYSTEM_TICKS = 11, 12
"""Places in /proc/PID/task/TID/stat, counted from the field after the command."""


def thread_seconds(pid: int, proc: Path = PROC) -> dict[int, float]:
    """By the kernel's thread id, to the tick (10 ms as a rule); empty where it cannot be read."""
    tick_seconds = 1 / os.sysconf("SC_CLK_TCK")
    seconds: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for path in sorted((proc / str(pid) / "task").iterdir())[:MAX_THREADS]:
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                seconds[int(path.name)] = (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) * tick_seconds
    return seconds


def spread(thread: ThreadSamples, before: Mapping[int, float], after: Mapping[int, float]) -> ThreadSamples:
    """The thread with the CPU time it used meanwhile given to its samples in equal parts.

    Which of them it was used in is not known from outside; but a thread that only waits gets none.
    """
    num_samples = sum(run.num_samples for run in thread.runs)
    used_seconds = max(0.0, after.get(thread.tid, 0.0) - before.get(thread.tid, after.get(thread.tid, 0.0)))
    if not num_samples or not used_seconds:
        return thread
    part = min(used_seconds / num_samples, sum(run.seconds for run in thread.runs) / num_samples)
    runs = [run._replace(cpu_seconds=part * run.num_samples) for run in thread.runs]
    return thread._replace(runs=runs)
