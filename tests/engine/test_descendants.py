"""The processes below a child are held on to, so that their end can be seen and brought about."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_watch import gone

from vllm_obs.engine.descendants import Descendants, descendants

SCRIPT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def parent() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process that has one child, and the child's pid."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def test_the_child_of_a_killed_process_is_seen_to_live_on_and_is_killed(
    parent: tuple["subprocess.Popen[str]", int],
) -> None:
    process, child = parent
    assert descendants(process.pid) == [child]
    below = Descendants.of(process.pid)
    process.kill()
    process.wait(10)
    assert not below.are_gone
    below.kill()
    assert gone(child, 10)
    deadline = time.monotonic() + 10
    while not below.are_gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert below.are_gone
    below.close()
    below.close()
    assert below.are_gone


def test_of_a_process_that_is_gone_there_is_nothing(tmp_path: Path) -> None:
    below = Descendants.of(7, tmp_path)
    assert below.are_gone
    below.kill()
    below.close()
