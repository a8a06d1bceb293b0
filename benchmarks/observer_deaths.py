"""Measures what a dying Observer costs a server under load: windows with a kill, each between two without.

    .venv/bin/python benchmarks/observer_deaths.py [--kills 10] [--window 20.5] [--concurrency 8] [-- flags]

One load runs all the time; its tokens are counted by window. Each window with a kill is held against the mean of
the one before and the one after it, which takes out what drifts. Three windows are longer than a minute together:
an Observer that lived so long is started again at once, as the first one is.

The promise (P7) is a throughput of at least 0.98 of the undisturbed one, and no error.
"""

import argparse
import asyncio
import math
import os
import signal
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psutil
from intervals import interval
from started_server import started

from vllm_obs.cli.bench.command import measure
from vllm_obs.cli.bench.load import Outcome
from vllm_obs.cli.bench.options import BenchOptions

PORT = 8946
OBSERVER = "vllm-obs::Observer"
SETTLE_SECONDS = 15.0
"""From the load's begin to the first window: streams that began together have come apart."""
KILL_AFTER_SECONDS = 1.0
EARLY_SECONDS = 10.0
"""Of a new Observer's life, what it took until then is told too."""
NS = 1_000_000_000


class Window(NamedTuple):
    """A span of the load (monotonic ns), and the CPU seconds of the server's processes in it."""

    begun_at: int
    ended_at: int
    cpu_seconds: float

    def num_tokens(self, outcomes: Sequence[Outcome]) -> int:
        """How many tokens came in it."""
        return sum(self.begun_at <= at < self.ended_at for each in outcomes for at in each.token_moments)

    def rate(self, outcomes: Sequence[Outcome]) -> float:
        """Tokens a second."""
        return self.num_tokens(outcomes) / (self.ended_at - self.begun_at) * NS

    def cpu_per_token(self, outcomes: Sequence[Outcome]) -> float:
        """CPU seconds a token."""
        return self.cpu_seconds / self.num_tokens(outcomes)


class Death(NamedTuple):
    """What the next Observer took: seconds until its process was there, and its CPU seconds in its first ten."""

    gone_seconds: float
    early_cpu_seconds: float
    window: Window


def main() -> None:
    """Start one server, load it, kill, and print the ratios."""
    options = _arguments()
    seconds = SETTLE_SECONDS + 3 * options.kills * options.window + options.window
    with started(options.flags, PORT) as process, ThreadPoolExecutor(1) as pool:
        root = psutil.Process(process.pid)
        load = pool.submit(asyncio.run, measure(_load(options, seconds)))
        time.sleep(SETTLE_SECONDS)
        triples = []
        for _ in range(options.kills):
            before = _window(root, options.window)
            death = _killed(root, options.window)
            triples.append((before, death, _window(root, options.window)))
            print(
                f"killed: {death.gone_seconds:.2f} s without, {death.early_cpu_seconds:.2f} s of CPU", flush=True
            )
        outcomes = load.result().outcomes
    _print(triples, outcomes)


def _print(triples: list[tuple[Window, Death, Window]], outcomes: Sequence[Outcome]) -> None:
    rates, costs = [], []
    for before, death, after in triples:
        alone = (before.rate(outcomes) + after.rate(outcomes)) / 2
        rates.append(death.window.rate(outcomes) / alone)
        alone_cost = (before.cpu_per_token(outcomes) + after.cpu_per_token(outcomes)) / 2
        costs.append(death.window.cpu_per_token(outcomes) / alone_cost)
        print(f"killed {death.window.rate(outcomes):.1f} tokens/s, left alone {alone:.1f}: {rates[-1]:.4f}")
    null = [after.rate(outcomes) / before.rate(outcomes) for before, _, after in triples]
    print(f"throughput, killed / left alone: median {statistics.median(rates):.4f}, mean {interval(rates)}")
    print(f"CPU a token, killed / left alone: median {statistics.median(costs):.4f}, mean {interval(costs)}")
    print(f"left alone, after / before: mean {interval(null)}")
    early = [death.early_cpu_seconds for _, death, _ in triples]
    print(
        f"a new Observer's first {EARLY_SECONDS:g} s: {statistics.median(early):.2f} s of CPU "
        f"({min(early):.2f} to {max(early):.2f})"
    )
    print(f"{len(outcomes)} requests, {sum(bool(each.error) for each in outcomes)} failed")


def _load(options: argparse.Namespace, seconds: float) -> BenchOptions:
    return BenchOptions(
        base_url=f"http://127.0.0.1:{PORT}",
        random_input_len=128,
        random_output_len=128,
        random_range_ratio=0.5,
        ignore_eos=True,
        duration=math.ceil(seconds),
        max_concurrency=options.concurrency,
        num_warmups=2,
        disable_tqdm=True,
    )


def _window(root: psutil.Process, seconds: float) -> Window:
    begun_at, before = time.monotonic_ns(), _cpu_seconds(root)
    time.sleep(seconds)
    return Window(begun_at, time.monotonic_ns(), _cpu_seconds(root) - before)


def _killed(root: psutil.Process, seconds: float) -> Death:
    """A window in which the Observer is killed."""
    begun_at, before = time.monotonic_ns(), _cpu_seconds(root)
    time.sleep(KILL_AFTER_SECONDS)
    old = _observer(root)
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    while (new := _observer(root)) is None or new.pid == old.pid:
        time.sleep(0.1)
    gone_seconds = time.monotonic() - killed_at
    time.sleep(EARLY_SECONDS)
    early = sum(new.cpu_times()[:2])
    time.sleep(max(0.0, seconds - (time.monotonic_ns() - begun_at) / NS))
    window = Window(begun_at, time.monotonic_ns(), _cpu_seconds(root) - before)
    return Death(gone_seconds, early, window)


def _observer(root: psutil.Process) -> psutil.Process | None:
    for child in root.children(recursive=True):
        try:
            if child.cmdline()[:1] == [OBSERVER]:
                return child
        except psutil.Error:
            continue
    return None


def _cpu_seconds(root: psutil.Process) -> float:
    """Of the server's processes, those that ended included."""
    each = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(times.user + times.system + times.children_user + times.children_system for times in each)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--window", type=float, default=20.5, metavar="SECONDS")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("flags", nargs="*")
    return parser.parse_args()


if __name__ == "__main__":
    main()
