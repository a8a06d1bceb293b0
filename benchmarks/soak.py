"""A soak: short requests with random aborts, an Observer killed now and then, and what grows meanwhile.

    python benchmarks/soak.py [--seconds 3600 --clients 8 --kill-seconds 240] [-- flags of the server]

Starts a server of its own. Each half minute it prints every process's memory, open files and threads, the files of
the run and of shared memory, the series of /metrics and how long a scrape took; at the end the slopes, and whether
the books are even.
"""

import argparse
import asyncio
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

COMMAND = [sys.executable, "-m", "vllm_obs", "serve"]
PORT, INSPECT_PORT = 8931, 9931
API, INSPECTOR = f"http://127.0.0.1:{PORT}", f"http://127.0.0.1:{INSPECT_PORT}"
READY_SECONDS, IDLE_SECONDS, LOOK_SECONDS = 120.0, 60.0, 30.0
WARM_UP_SHARE = 0.2
ABORTED_SHARE, REFUSED_SHARE = 0.25, 0.03
WORDS = ("the", "fox", "rain", "Paris", "seven", "why")
MIB = 1 << 20
ROLES = ("APIServer_0", "EngineCore_DP0", "Observer")


class Look(NamedTuple):
    """What there is at a moment. `rss` (bytes), `fds` and `threads` are by process."""

    num_requests: int
    rss: dict[str, int]
    fds: dict[str, int]
    threads: dict[str, int]
    num_run_files: int
    num_shm_files: int
    num_series: int
    scrape_ms: float


class Soak:
    """One server, its load and its looks."""

    def __init__(self, options: argparse.Namespace, server: psutil.Process) -> None:
        self._options = options
        self._server = server
        self._client = httpx.AsyncClient(base_url=API, timeout=120.0, limits=httpx.Limits(max_connections=64))
        self._ends_at: float = time.monotonic() + options.seconds
        self.outcomes: Counter[str] = Counter()
        self.num_kills = 0
        self.looks: list[Look] = []

    async def run(self) -> None:
        """Load, kill and look until the time is up; then wait for the engine to be idle."""
        clients = [self._repeat(self._request) for _ in range(self._options.clients)]
        await asyncio.gather(*clients, self._repeat(self._kill_observer), self._repeat(self._look))
        await asyncio.sleep(2.0)
        await self._look(0.0)
        print(f"books at the end: {await self._books()}", flush=True)
        await self._client.aclose()

    async def _repeat(self, act: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._ends_at:
            await act()

    async def _request(self) -> None:
        dice = random.Random()
        body = {
            "prompt": " ".join(dice.choices(WORDS, k=dice.randint(1, 60))),
            "max_tokens": dice.randint(1, 24),
            "n": dice.choice((1, 1, 1, 2)),
            "stream": dice.random() < 0.6,
            "temperature": dice.choice((0.0, 0.8)),
        }
        if dice.random() < REFUSED_SHARE:
            body["max_tokens"] = -1
        try:
            if dice.random() < ABORTED_SHARE:
                # A connection of its own: a pool would never have it back.
                async with httpx.AsyncClient(base_url=API, verify=False) as client:
                    async with asyncio.timeout(dice.uniform(0.0, 0.4)):
                        reply = await client.post("/v1/completions", json=body)
            else:
                reply = await self._client.post("/v1/completions", json=body)
            self.outcomes[str(reply.status_code)] += 1
        except TimeoutError:
            self.outcomes["left"] += 1
        except httpx.HTTPError as error:
            self.outcomes[type(error).__name__] += 1

    async def _kill_observer(self) -> None:
        await asyncio.sleep(min(self._options.kill_seconds * random.uniform(0.5, 1.5), self._left()))
        observer = self._processes().get("Observer")
        if observer is not None and self._left():
            observer.send_signal(signal.SIGKILL)
            self.num_kills += 1

    async def _look(self, pause_seconds: float = LOOK_SECONDS) -> None:
        await asyncio.sleep(min(pause_seconds, self._left()) if pause_seconds else 0.0)
        begun = time.monotonic()
        try:
            text = (await self._client.get("/metrics")).raise_for_status().text
        except httpx.HTTPError:  # the Observer is being started again
            return
        scrape_ms = 1e3 * (time.monotonic() - begun)
        processes = self._processes()
        look = Look(
            sum(self.outcomes.values()),
            {role: process.memory_info().rss for role, process in processes.items()},
            {role: process.num_fds() for role, process in processes.items()},
            {role: process.num_threads() for role, process in processes.items()},
            sum(1 for _ in Path(self._options.run_dir).rglob("*")) if self._options.run_dir else 0,
            sum(1 for path in Path("/dev/shm").iterdir() if "vllm" in path.name),
            sum(1 for line in text.splitlines() if line and line[0] != "#"),
            scrape_ms,
        )
        self.looks.append(look)
        sizes = ", ".join(f"{role} {look.rss[role] / MIB:.1f} MiB" for role in look.rss)
        print(
            f"{self._options.seconds - self._left():5.0f} s {look.num_requests} requests; {sizes}; "
            f"fds {list(look.fds.values())}, threads {list(look.threads.values())}; {look.num_shm_files} in shm, "
            f"{look.num_run_files} run files; {look.num_series} series in {scrape_ms:.0f} ms",
            flush=True,
        )

    def _left(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())

    def _processes(self) -> dict[str, psutil.Process]:
        """By role; a process that ends meanwhile is left out."""
        found = {"APIServer_0": self._server}
        for child in self._server.children():
            title = " ".join(child.cmdline())
            found |= {role: child for role in ROLES[1:] if role in title}
        return found

    async def _books(self) -> str:
        deadline = time.monotonic() + IDLE_SECONDS
        while time.monotonic() < deadline:
            state = (await self._client.get(INSPECTOR + "/inspect/state")).json()
            engine = state["engines"][0]
            if not engine["num_running"] and not engine["num_waiting"] and not engine["blocks"]["num_active"]:
                return "nobody runs, nobody waits, no block is held"
            await asyncio.sleep(0.5)
        return f"NOT even: {engine}"


def slope(looks: list[Look], value: Callable[[Look], float]) -> float:
    """By least squares, for each 10,000 requests, of the looks after the warm-up."""
    kept = looks[int(WARM_UP_SHARE * len(looks)) :]
    done = [look.num_requests / 10_000 for look in kept]
    return float(statistics.linear_regression(done, [value(look) for look in kept]).slope)


def report(soak: Soak) -> None:
    """Slopes and ranges."""
    looks = soak.looks
    print(f"{sum(soak.outcomes.values())} requests {dict(soak.outcomes)}, {soak.num_kills} Observers killed")
    for role in ROLES:
        whole = [look for look in looks if role in look.rss]
        kept = whole[int(WARM_UP_SHARE * len(whole)) :]
        grown = slope(whole, lambda look, role=role: look.rss[role] / MIB)  # type: ignore[misc]
        fds, threads = [look.fds[role] for look in kept], [look.threads[role] for look in kept]
        print(
            f"{role}: {grown:+.2f} MiB per 10,000 requests; fds {min(fds)} to {max(fds)}, "
            f"threads {min(threads)} to {max(threads)}"
        )
    series = [look.num_series for look in looks[int(WARM_UP_SHARE * len(looks)) :]]
    scrapes = sorted(look.scrape_ms for look in looks)
    times = f"{statistics.median(scrapes):.0f} ms, at most {scrapes[-1]:.0f}"
    print(f"series {min(series)} to {max(series)}; scrapes {times}")


def main() -> None:
    """Start the server, soak it, end it."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seconds", type=float, default=3600.0)
    made.add_argument("--clients", type=int, default=8)
    made.add_argument("--kill-seconds", type=float, default=240.0)
    made.add_argument("--run-dir", default="")
    made.add_argument("flags", nargs="*")
    options = made.parse_args()
    ports = ["--port", str(PORT), "--inspect-port", str(INSPECT_PORT), "--disable-uvicorn-access-log"]
    with subprocess.Popen([*COMMAND, *ports, *options.flags]) as server:
        try:
            wait_ready(server)
            soak = Soak(options, psutil.Process(server.pid))
            asyncio.run(soak.run())
            report(soak)
        finally:
            server.terminate()
            print(f"exit code {server.wait(60)}")


def wait_ready(server: subprocess.Popen[bytes]) -> None:
    """Until requests are let in. SystemExit where the server ends before."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(API + "/readyz").status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server is not ready")


if __name__ == "__main__":
    main()
