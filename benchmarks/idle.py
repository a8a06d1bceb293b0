"""Measures what a server costs that has nothing to do: the CPU time and the wake-ups of each of its processes.

    .venv/bin/python benchmarks/idle.py [--seconds 30] [--threads] [-- flags of the server]

Starts a server of its own, lets it settle, and reads /proc. A percent is one of one core; the promise is 3 in all.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

COMMAND = [sys.executable, "-m", "vllm_obs", "serve"]
PORT = 8941
READY_SECONDS = 120.0
SETTLE_SECONDS = 10.0
"""After the start: what is done once, and the first full collection of garbage, are over."""
PROMISED_PERCENT = 3.0


class Spent(NamedTuple):
    """What a thread has used since its start: CPU time, and how often it went to sleep of itself."""

    cpu_ns: int
    num_sleeps: int


Thread = tuple[int, str, str, int]
"""Its process's id and title, and its own name and id."""


def spent(root: psutil.Process) -> dict[Thread, Spent]:
    """By thread, of a process and all that came from it."""
    found: dict[Thread, Spent] = {}
    for process in (root, *root.children(recursive=True)):
        title = process.cmdline()[0].removeprefix("vllm-obs::")
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            thread = (process.pid, title, (task / "comm").read_text().strip(), int(task.name))
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            sleeps = next(line for line in (task / "status").read_text().splitlines() if line.startswith("volunt"))
            found[thread] = Spent(cpu_ns, int(sleeps.split()[1]))
    return found


def measure(root: psutil.Process, seconds: float) -> tuple[dict[Thread, Spent], float]:
    """What each thread used in that time, and how long that was (seconds)."""
    begun_at, before = time.monotonic(), spent(root)
    time.sleep(seconds)
    after, length = spent(root), time.monotonic() - begun_at
    nothing = Spent(0, 0)
    used = {}
    for thread, now in after.items():
        then = before.get(thread, nothing)
        used[thread] = Spent(now.cpu_ns - then.cpu_ns, now.num_sleeps - then.num_sleeps)
    return used, length


def table(used: dict[Thread, Spent], seconds: float, is_by_thread: bool) -> None:
    """Print who used what, and the sum."""
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for (pid, title, name, _), each in used.items():
        line = sums[(pid, f"{title} {name}" if is_by_thread else title)]
        line[0] += each.cpu_ns
        line[1] += each.num_sleeps
    print("| process | CPU (% of a core) | wake-ups a second |\n| --- | --- | --- |")
    for (_, name), (cpu_ns, num_sleeps) in sums.items():
        if num_sleeps or cpu_ns:
            print(f"| {name} | {cpu_ns / seconds / 1e7:.2f} | {num_sleeps / seconds:.1f} |")
    percent = sum(each.cpu_ns for each in used.values()) / seconds / 1e7
    sleeps = sum(each.num_sleeps for each in used.values()) / seconds
    verdict = "within" if percent <= PROMISED_PERCENT else "over"
    print(f"| all: {verdict} the promised {PROMISED_PERCENT:g} % | {percent:.2f} | {sleeps:.1f} |")


def wait_ready(server: subprocess.Popen[bytes]) -> None:
    """Until requests are let in."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{PORT}/readyz").status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server is not ready")


def main() -> None:
    """Start the server, let it rest, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", action="store_true", help="a line for each thread")
    parser.add_argument("--runs", type=int, default=1, help="measured one after the other")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    with subprocess.Popen([*COMMAND, "--port", str(PORT), *options.flags], stdout=subprocess.DEVNULL) as server:
        try:
            wait_ready(server)
            time.sleep(SETTLE_SECONDS)
            for _ in range(options.runs):
                table(*measure(psutil.Process(server.pid), options.seconds), options.threads)
        finally:
            server.send_signal(signal.SIGTERM)
            print(f"exit code {server.wait(60)}")


if __name__ == "__main__":
    main()
