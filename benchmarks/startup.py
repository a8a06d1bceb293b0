"""Measures how long a server takes from its command to the first 200 of /readyz, with what CPU time, and where.

.venv/bin/python benchmarks/startup.py [--runs 5] [--base FOLDER] [-- flags of the server]

With --base (another clone of this repository) its server is started in turn with this one. CPU time is that of all
processes, until SETTLED_SECONDS after the server was ready: what is put off until then costs as much.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from started_server import started

PORT = 8942
SETTLED_SECONDS = 4.0
OWN = Path(__file__).resolve().parent.parent


@dataclass
class Starts:
    """What starts of one tree took. `cpu_seconds` is for each process by its title."""

    tree: Path
    ready_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[dict[str, float]] = field(default_factory=list)

    def measure(self, flags: list[str]) -> None:
        """Start and end a server."""
        begun_at = time.monotonic()
        with started(flags, PORT, environment_of(self.tree)) as server:
            self.ready_seconds.append(time.monotonic() - begun_at)
            time.sleep(SETTLED_SECONDS)
            self.cpu_seconds.append(cpu_seconds_of(server.pid))
            print(f"{self.tree}: {self._words(-1)}", flush=True)

    def _words(self, number: int) -> str:
        parts = self.cpu_seconds[number]
        each = ", ".join(f"{title} {seconds:.2f}" for title, seconds in parts.items())
        return f"ready after {self.ready_seconds[number]:.2f} s, CPU {sum(parts.values()):.2f} s ({each})"

    def summary(self) -> str:
        """Medians, with the least and the most."""
        totals = [sum(each.values()) for each in self.cpu_seconds]
        each_title = {title: [each.get(title, 0.0) for each in self.cpu_seconds] for title in self.cpu_seconds[-1]}
        parts = (f"{title} {statistics.median(values):.2f}" for title, values in each_title.items())
        return (
            f"{self.tree}: {len(totals)} starts, ready after {_spread(self.ready_seconds)} s, "
            f"CPU {_spread(totals)} s ({', '.join(parts)})"
        )


def main() -> None:
    """Start and end servers; print each start, the medians, and where the last one went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--base", type=Path)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    trees = [Starts(tree.resolve()) for tree in (options.base, OWN) if tree is not None]
    for _ in range(options.runs):
        for starts in trees:
            starts.measure(options.flags)
    with started(options.flags, PORT, environment_of(OWN)):
        subprocess.run([sys.executable, "-m", "vllm_obs", "startup"], check=False)
    for starts in trees:
        print(starts.summary())


def environment_of(tree: Path) -> dict[str, str]:
    """This environment, with that tree's package before the installed one."""
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


def cpu_seconds_of(pid: int) -> dict[str, float]:
    """What the process and its descendants have used so far, by title."""
    root = psutil.Process(pid)
    return {title_of(each): sum(each.cpu_times()[:2]) for each in (root, *root.children(recursive=True))}


def title_of(process: psutil.Process) -> str:
    """Its title without the product's name, or else what it runs."""
    words = " ".join(process.cmdline()).strip()
    return words.rpartition("::")[2] or process.name()


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
