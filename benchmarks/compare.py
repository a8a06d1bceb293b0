"""The same load against several OpenAI servers that run side by side, in turn, with ratios to the first one.

    .venv/bin/python benchmarks/compare.py ours=http://127.0.0.1:8000 vllm=http://127.0.0.1:8001 \\
        --concurrency 1 8 32 --rounds 3 --duration 20 [--random-prefix-len 512] [--pid ours=1234 vllm=1235]

In each round each server is measured once, the order turning from round to round, so that what else the machine
does meets them alike. A round lasts until its last stream has ended; "while all run" is the rate of the seconds
before that, in which each stream that ended was followed by another. Printed are medians and ranges over the
rounds; a ratio is taken within its round first.
With `--pid` of a server's first process, the CPU time a token by the titles of its processes.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from vllm_obs.cli.bench.command import measure
from vllm_obs.cli.bench.figures import latencies, loaded_rate, percentile, throughput
from vllm_obs.cli.bench.options import BenchOptions

PERCENT_OF_MEDIAN, PERCENT_OF_TAIL = 50, 99


class Figures(NamedTuple):
    """One server under one load, once. Times in milliseconds."""

    tokens_per_second: float
    loaded_tokens_per_second: float
    """While all streams ran: without the end of the round, in which no request is sent any more."""
    ttft: float
    ttft_p99: float
    itl: float
    itl_p99: float
    num_failed: int
    cpu_ms_by_title: dict[str, float]
    """CPU time a token."""


@dataclass(frozen=True)
class Server:
    """A server to measure: its name here, its address, and its first process, 0 where it is not known."""

    name: str
    url: str
    pid: int

    def cpu_seconds(self) -> dict[str, float]:
        """What its processes have used until now, by title."""
        if not self.pid:
            return {}
        used: dict[str, float] = {}
        root = psutil.Process(self.pid)
        for process in (root, *root.children(recursive=True)):
            times = process.cpu_times()
            title = " ".join(process.cmdline())[:40] or process.name()
            used[title] = used.get(title, 0.0) + times.user + times.system
        return used

    def measured(self, options: BenchOptions) -> Figures:
        """Send the load; what came of it."""
        before = self.cpu_seconds()
        report = asyncio.run(measure(options))
        after = self.cpu_seconds()
        whole, waits = throughput(report.outcomes), latencies(report.outcomes)
        num_tokens = max(1, whole.num_output_tokens)
        return Figures(
            whole.per_second(whole.num_output_tokens),
            loaded_rate(report.outcomes, options.duration or whole.duration_seconds),
            percentile(waits.ttft, PERCENT_OF_MEDIAN),
            percentile(waits.ttft, PERCENT_OF_TAIL),
            percentile(waits.itl, PERCENT_OF_MEDIAN),
            percentile(waits.itl, PERCENT_OF_TAIL),
            whole.num_failed,
            {title: 1e3 * (used - before.get(title, 0.0)) / num_tokens for title, used in after.items()},
        )


def main() -> int:
    """Measure and print; 1 when a request failed."""
    given = _arguments()
    pids = dict(_named(given.pid))
    servers = [Server(name, url, int(pids.get(name, 0))) for name, url in _named(given.servers)]
    num_failed = 0
    for concurrency in given.concurrency:
        found: dict[str, list[Figures]] = {server.name: [] for server in servers}
        for round_number in range(given.rounds):
            turned = servers[round_number % len(servers) :] + servers[: round_number % len(servers)]
            for server in turned:
                found[server.name].append(server.measured(_options(given, server, concurrency, round_number)))
        _print(concurrency, found)
        num_failed += sum(figures.num_failed for rounds in found.values() for figures in rounds)
    return 1 if num_failed else 0


def _options(given: argparse.Namespace, server: Server, concurrency: int, round_number: int) -> BenchOptions:
    """Each round has its own prompts, the same for all servers."""
    return BenchOptions(
        base_url=server.url,
        random_input_len=given.random_input_len,
        random_output_len=given.random_output_len,
        random_prefix_len=given.random_prefix_len,
        ignore_eos=True,
        duration=given.duration,
        max_concurrency=concurrency,
        num_warmups=given.num_warmups,
        seed=1000 * concurrency + round_number,
        disable_tqdm=True,
    )


def _print(concurrency: int, found: dict[str, list[Figures]]) -> None:
    print(f"\nconcurrency {concurrency}, medians (ranges) of {len(next(iter(found.values())))} rounds")
    first = next(iter(found))
    for name, rounds in found.items():
        columns = {
            "tokens/s": [figures.tokens_per_second for figures in rounds],
            "while all run": [figures.loaded_tokens_per_second for figures in rounds],
            "TTFT ms": [figures.ttft for figures in rounds],
            "p99": [figures.ttft_p99 for figures in rounds],
            "ITL ms": [figures.itl for figures in rounds],
            "p99 ITL": [figures.itl_p99 for figures in rounds],
        }
        print(f"  {name:12}", "  ".join(f"{label} {_spread(values)}" for label, values in columns.items()))
        if failed := sum(figures.num_failed for figures in rounds):
            print(f"  {'':12} {failed} requests failed")
        if name != first:
            pairs = list(zip(found[first], rounds, strict=True))
            faster = [ours.tokens_per_second / other.tokens_per_second for ours, other in pairs]
            loaded = [ours.loaded_tokens_per_second / other.loaded_tokens_per_second for ours, other in pairs]
            sooner = [ours.ttft / other.ttft for ours, other in pairs if other.ttft]
            ratios = {"tokens/s": faster, "while all run": loaded, "TTFT": sooner}
            print(
                f"  {first} / {name}:", ", ".join(f"{label} {_spread(each, 2)}" for label, each in ratios.items())
            )
        for title in rounds[-1].cpu_ms_by_title:
            values = [figures.cpu_ms_by_title.get(title, 0.0) for figures in rounds]
            print(f"  {'':12} {title}: {_spread(values, 3)} ms CPU a token")


def _spread(values: Sequence[float], digits: int = 1) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _named(pairs: Sequence[str]) -> list[tuple[str, str]]:
    named = [tuple(pair.split("=", 1)) for pair in pairs]
    if bad := [pair for pair in named if len(pair) != 2]:
        sys.exit(f"{bad[0][0]} is not NAME=VALUE")
    return [(pair[0], pair[1]) for pair in named]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--pid", nargs="*", default=[], metavar="NAME=PID")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--num-warmups", type=int, default=2)
    parser.add_argument("--random-input-len", type=int, default=128)
    parser.add_argument("--random-output-len", type=int, default=128)
    parser.add_argument("--random-prefix-len", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
