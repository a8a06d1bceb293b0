"""What a test starts is gone once pytest is, also where somebody kills it."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil

SCRIPT = """
import subprocess, time
from ends_with_pytest import ends_with_pytest
print(ends_with_pytest(subprocess.Popen(["sleep", "60"])).pid, flush=True)
time.sleep(60)
"""
SUPPORT = str(Path(__file__).parent / "support")


def test_a_killed_pytest_leaves_nobody_behind() -> None:
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": SUPPORT}) as pytest_like:
        assert pytest_like.stdout is not None
        child = psutil.Process(int(pytest_like.stdout.readline()))
        assert [each.name() for each in psutil.Process(pytest_like.pid).children()] == ["sleep"]
        pytest_like.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs([child], timeout=20)
    assert (len(gone), alive) == (1, [])
