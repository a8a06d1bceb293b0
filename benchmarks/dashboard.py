"""What looking costs: tokens a second with and without stream clients, and the dashboard's own CPU and memory.

    python benchmarks/dashboard.py streams API_URL INSPECTOR_URL [--seconds 20 --pairs 4 --concurrency 8]
    python benchmarks/dashboard.py process PID [--seconds 600]

`streams` holds one client on each of the canvases' streams in every second window, in turn; `process` watches a
dashboard that somebody looks at. The Observer's CPU is that of the process that listens at INSPECTOR_URL.
"""

import argparse
import asyncio
import random
import statistics
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import psutil

STREAMS = ("/inspect/streams/steps", "/inspect/streams/blocks")


class Window(NamedTuple):
    """Output tokens a second, and the share of a core that the Observer took."""

    tokens_per_second: float
    observer_share: float


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
    ratios, added = [], []
    for pair in range(options.pairs):
        order = (True, False) if pair % 2 else (False, True)
        found = {has_streams: await window(options, observer, has_streams) for has_streams in order}
        ratios.append(found[True].tokens_per_second / found[False].tokens_per_second)
        added.append(found[True].observer_share - found[False].observer_share)
        print(
            f"without {found[False].tokens_per_second:.1f} tokens/s, with {found[True].tokens_per_second:.1f}: "
            f"ratio {ratios[-1]:.3f}; Observer {100 * found[False].observer_share:.2f} → "
            f"{100 * found[True].observer_share:.2f} % of a core",
            flush=True,
        )
    print(
        f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f}); "
        f"Observer {100 * statistics.median(added):+.2f} points"
    )


async def window(options: argparse.Namespace, observer: psutil.Process, has_streams: bool) -> Window:
    """One stretch of closed-loop load."""
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=200)) as client:
        listening = [
            asyncio.create_task(listen(client, options.inspector + path)) for path in STREAMS if has_streams
        ]
        await asyncio.sleep(1.0)
        cpu, begun = sum(observer.cpu_times()[:2]), time.monotonic()
        until = begun + options.seconds
        counts = await asyncio.gather(*(generate(client, options.api, until) for _ in range(options.concurrency)))
        length = time.monotonic() - begun
        share = (sum(observer.cpu_times()[:2]) - cpu) / length
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
    return Window(sum(counts) / length, share)


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
    streams.add_argument("--seconds", type=float, default=20.0)
    streams.add_argument("--pairs", type=int, default=4)
    streams.add_argument("--concurrency", type=int, default=8)
    process = commands.add_parser("process")
    process.add_argument("pid", type=int)
    process.add_argument("--seconds", type=float, default=600.0)
    return made


if __name__ == "__main__":
    main()
