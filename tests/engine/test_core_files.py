"""A process that crashes leaves no copy of its memory, even where its user asked for one."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CRASH = """
import os, resource
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if {leaves_none}:
    from vllm_obs.engine.core_files import leave_no_core_files
    leave_no_core_files()
child = os.fork()
if not child:
    os.abort()
_, status = os.waitpid(child, 0)
print(os.WTERMSIG(status), os.WCOREDUMP(status))
"""


def crash(place: Path, leaves_none: bool) -> tuple[int, bool]:
    """The signal that ended a child of such a process, and whether its memory was written down."""
    script = CRASH.format(leaves_none=leaves_none)
    done = subprocess.run([sys.executable, "-c", script], cwd=place, capture_output=True, text=True, timeout=60)
    number, is_dumped = done.stdout.split()
    return int(number), is_dumped == "True"


def test_a_crash_leaves_no_core_file(tmp_path: Path) -> None:
    assert crash(tmp_path, leaves_none=True) == (signal.SIGABRT, False)
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_without_it_there_would_be_one(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core files are forbidden here")
    _, is_dumped = crash(tmp_path, leaves_none=False)
    if not is_dumped:
        pytest.skip("the kernel writes none here")
