"""Whether processes end, and what they use while they live."""

import time

import psutil


def gone(pid: int, seconds: float) -> bool:
    """Whether the process ended within that time; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
