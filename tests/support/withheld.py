"""Withheld: how long other work on the machine kept a process from running, to which no deadline is held."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

NS = 1e9
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
IDLE_COLUMNS = (3, 4)
STEAL_COLUMN = 7
"""Of the numbers in a line of /proc/stat: ticks in which nothing ran, and in which the core's host ran another."""


class Withheld:
    """What was kept since it was made from one process of a tree, and from the thread that asks it.

    The kernel counts how long a thread was ready to run and did not. One that sleeps, is stopped or computes is
    not kept from anything, so a loop that is held up by itself is not taken for one that had no core. What the
    tree's own processes took from each other does not count either: no more is excused than other processes have
    run. Where the kernel does not count, nothing is excused.
    """

    def __init__(self, pid: int, tree: Iterable[int]) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._tree = {os.getpid(), pid, *tree}
        self._before = self._delays()
        self._own_before = _delay(Path("/proc/thread-self"))
        self._others_before, self._stolen_before = self._others_seconds(), _stolen_seconds()

    def seconds(self) -> float:
        """Of the thread that waited longest for a core, and of the one that asks; it must have made this."""
        delays = [delay - self._before.get(thread, 0) for thread, delay in self._delays().items()]
        waited = max(delays, default=0) + _delay(Path("/proc/thread-self")) - self._own_before
        others = self._others_seconds() - self._others_before
        return min(waited / NS, max(0.0, others)) + _stolen_seconds() - self._stolen_before

    def _delays(self) -> dict[str, int]:
        """By thread the ns it has been ready to run without running."""
        with contextlib.suppress(OSError):
            return {task.name: _delay(task) for task in self._tasks.iterdir()}
        return {}

    def _others_seconds(self) -> float:
        """How long all cores together have run anything that is not of the tree."""
        ticks = [*map(int, _lines_of_stat()[0].split()[1:9])]
        busy = sum(ticks) - sum(ticks[column] for column in (*IDLE_COLUMNS, STEAL_COLUMN))
        return (busy - sum(map(_ticks, self._tree))) * TICK_SECONDS


def _delay(task: Path) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((task / "schedstat").read_text().split()[1])
    return 0


def _ticks(pid: int) -> int:
    """User and system time of a process so far; none of one that is gone."""
    with contextlib.suppress(OSError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return int(user) + int(system)
    return 0


def _stolen_seconds() -> float:
    """Of the core that was stolen most so far."""
    cores = _lines_of_stat()[1:]
    return max(int(line.split()[1 + STEAL_COLUMN]) for line in cores) * TICK_SECONDS


def _lines_of_stat() -> list[str]:
    return [line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
