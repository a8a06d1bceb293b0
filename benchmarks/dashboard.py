"""What looking costs: tokens a second with and without stream clients, and the dashboard's own CPU and memory.

    python benchmarks/dashboard.py streams API_URL INSPECTOR_URL [--page scheduler|kv --seconds 20 --pairs 4]
    python benchmarks/dashboard.py process PID [--seconds 600]

`streams` looks as a page does (its stream, and what it asks for once a second) in every second window; `process`
watches a dashboard that somebody looks at. The Observer is the process that listens at INSPECTOR_URL.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import psutil

POLL_SECONDS = 1.0


class Page(NamedTuple):
    """What a page of the inspector holds open, and what it asks for once a second."""

    stream: str
    polled: tuple[str, ...]


PAGES = {
    "scheduler": Page("/inspect/streams/steps", ("/inspect/state", "/inspect/queues?engine=0")),
    "kv": Page("/inspect/streams/blocks", ("/inspect/state", "/inspect/blocks/summary?engine=0")),
}
"""The pages with streams, which are the busiest."""


class Window(NamedTuple):
    """Output tokens a second, the Observer's share of a core, and all the server's CPU ms a token."""

    tokens_per_second: float
    observer_share: float
    cpu_ms_a_token: float


def main() -> None:
    """Measure what is asked for."""
    options = parser().parse_args()
    if options.what == "process":
        watch(psutil.Process(options.pid), options.seconds)
    else:
        asyncio.run(compare(options))


def watch(process: psutil.Process, seconds: float) -> None:
    """Print CPU share and memory of a process over some time, each ten seconds and at the end."""
    begun, cpu = time.monotonic(), sum(process.cpu_times()[:2])
    peak = 0
    while (passed := time.monotonic() - begun) < seconds:
        time.sleep(min(10.0, seconds - passed))
        peak = max(peak, process.memory_info().rss)
        share = (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - begun)
        print(f"{passed:5.0f} s: {100 * share:.1f} % of a core, {peak / (1 << 20):.0f} MiB at most", flush=True)


async def compare(options: argparse.Namespace) -> None:
    """Windows with and without the streams, in turn; prints each pair and the medians."""
    observer = listener_of(options.inspector)
    await window(options, observer, False)  # warms up
    ratios, added, costs = [], [], []
    for pair in range(options.pairs):
        order = (True, False) if pair % 2 else (False, True)
        found = {has_streams: await window(options, observer, has_streams) for has_streams in order}
        ratios.append(found[True].tokens_per_second / found[False].tokens_per_second)
        costs.append(found[True].cpu_ms_a_token / found[False].cpu_ms_a_token)
        added.append(found[True].observer_share - found[False].observer_share)
        without, looking = found[False], found[True]
        print(
            f"without {without.tokens_per_second:.1f} tokens/s, with {looking.tokens_per_second:.1f}: "
            f"ratio {ratios[-1]:.3f}; CPU a token {costs[-1]:.3f}; "
            f"Observer {100 * without.observer_share:.2f} → {100 * looking.observer_share:.2f} % of a core",
            flush=True,
        )
    print(
        f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f}); "
        f"CPU a token {statistics.median(costs):.3f} ({min(costs):.3f}–{max(costs):.3f}); "
        f"Observer {100 * statistics.median(added):+.2f} points"
    )


async def window(options: argparse.Namespace, observer: psutil.Process, has_streams: bool) -> Window:
    """One stretch of closed-loop load."""
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=200)) as client:
        page = PAGES[options.page]
        listening = []
        if has_streams:
            looks = listen(client, options.inspector + page.stream), poll(client, options.inspector, page.polled)
            listening = [asyncio.create_task(look) for look in looks]
        await asyncio.sleep(1.0)
        server = family_of(observer)
        before, cpu, begun = cpu_seconds(server), cpu_seconds([observer]), time.monotonic()
        until = begun + options.seconds
        counts = await asyncio.gather(*(generate(client, options.api, until) for _ in range(options.concurrency)))
        length = time.monotonic() - begun
        share = (cpu_seconds([observer]) - cpu) / length
        spent = cpu_seconds(server) - before
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
    return Window(sum(counts) / length, share, 1e3 * spent / sum(counts))


def family_of(observer: psutil.Process) -> list[psutil.Process]:
    """The API server that owns the Observer, and its children."""
    server = observer.parent()
    assert server is not None
    return [server, *server.children()]


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Of all of them together."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


async def generate(client: httpx.AsyncClient, url: str, until: float) -> int:
    """Tokens of streamed completions, one after the other, up to a moment."""
    num_tokens = 0
    while time.monotonic() < until:
        body = {
            "prompt": f"Story {random.randrange(10**6)}:",
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                num_tokens += line.startswith("data: {")
                if time.monotonic() >= until:
                    break
    return num_tokens


async def listen(client: httpx.AsyncClient, url: str) -> None:
    """Read a stream and throw it away."""
    async with client.stream("GET", url) as reply:
        async for _ in reply.aiter_raw():
            pass


async def poll(client: httpx.AsyncClient, url: str, paths: Sequence[str]) -> None:
    """Ask for these once a second and throw the answers away."""
    while True:
        for path in paths:
            (await client.get(url + path)).raise_for_status()
        await asyncio.sleep(POLL_SECONDS)


def listener_of(url: str) -> psutil.Process:
    """The process that listens at an address of this machine."""
    port = urlsplit(url).port
    for process in psutil.process_iter():
        try:
            listens = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
        if any(each.laddr.port == port for each in listens):
            return process
    raise SystemExit(f"nobody listens at {url} on this machine")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="what", required=True)
    streams = commands.add_parser("streams")
    streams.add_argument("api")
    streams.add_argument("inspector")
    streams.add_argument("--page", choices=sorted(PAGES), default="scheduler")
    streams.add_argument("--seconds", type=float, default=20.0)
    streams.add_argument("--pairs", type=int, default=4)
    streams.add_argument("--concurrency", type=int, default=8)
    process = commands.add_parser("process")
    process.add_argument("pid", type=int)
    process.add_argument("--seconds", type=float, default=600.0)
    return made


if __name__ == "__main__":
    main()
