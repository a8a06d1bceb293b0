"""What other work takes from a process is told apart from what holds it up itself."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from withheld import Withheld

CHILD = """
import sys, time
def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
for line in sys.stdin:
    name, seconds = line.split()
    {"sleep": time.sleep, "work": work}[name](float(seconds))
    print(flush=True)
"""
SLACK_SECONDS = 0.1
"""Others' time is counted in ticks."""


class Child:
    """A process that does what it is told, and how long it took with and without what others took from it."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", CHILD]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, order: str) -> None:
        """Have it do something, which `end` waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "\n"

    def do(self, order: str) -> tuple[float, float]:
        """Seconds that it took, and those of them that are its own."""
        withheld, begun_at = Withheld(self.process.pid, ()), time.monotonic()
        self.begin(order)
        self.end()
        took = time.monotonic() - begun_at
        return took, took - withheld.seconds()

    def close(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    child.do("sleep 0")
    yield child
    child.close()


@pytest.mark.parametrize("order", ["sleep 0.5", "work 0.5"])
def test_nothing_excuses_a_process_that_sleeps_or_computes(child: Child, order: str) -> None:
    assert child.do(order)[1] > 0.5 - SLACK_SECONDS


def test_what_others_ran_meanwhile_is_no_part_of_it(child: Child) -> None:
    other = Child()
    core = {min(os.sched_getaffinity(0))}
    try:
        os.setpriority(os.PRIO_PROCESS, child.process.pid, 19)
        for process in (child, other):
            os.sched_setaffinity(process.process.pid, core)
            process.do("sleep 0")
        other.begin("work 0.6")
        took, own = child.do("work 0.1")
        other.end()
    finally:
        other.close()
    print(f"{took:.2f} s, of which {own:.2f} s its own")
    assert own < 0.1 + SLACK_SECONDS
