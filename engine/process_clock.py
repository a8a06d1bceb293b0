"""When this process began, on the clock that all its facts are on."""

import os
import time
from pathlib import Path

NS = 1_000_000_000
_START_TIME_FIELD = 19
"""Of /proc/self/stat, counted from the field after the command's name, which may hold blanks."""


def process_started_at() -> int:
    """The moment (`time.monotonic_ns()`) at which the kernel started this process, to a hundredth of a second.

    Now where /proc does not tell.
    """
    now = time.monotonic_ns()
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        since_boot = int(fields[_START_TIME_FIELD]) * NS // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    # The kernel counts from boot, with the time a machine slept; the monotonic clock leaves that out.
    age = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot
    return now - max(0, age)
