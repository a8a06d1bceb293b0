"""Measures what a dying Observer costs a server under load: windows in which it is killed, and others, in turn.

    .venv/bin/python benchmarks/observer_deaths.py [--pairs 5] [--duration 8] [--concurrency 8] [-- flags]

The promise (P7) is a throughput of at least 0.98 of the undisturbed one, and no error.
"""

import argparse
import os
import signal
import statistics
import threading

import psutil
from compare import Server
from started_server import started

from vllm_obs.cli.bench.options import BenchOptions

PORT = 8946
OBSERVER = "vllm-obs::Observer"
KILL_AFTER_SECONDS = 1.0


def main() -> None:
    """Start one server, measure the windows, print the ratios."""
    options = _arguments()
    ratios, num_failed = list[float](), 0
    with started(options.flags, PORT) as process:
        server = Server("server", f"http://127.0.0.1:{PORT}", process.pid)
        for pair in range(options.pairs):
            rates = {}
            for is_killed in (pair % 2 == 0, pair % 2 == 1):
                rates[is_killed], failed = _window(server, options, pair, is_killed)
                num_failed += failed
            ratios.append(rates[True] / rates[False])
            print(
                f"killed {rates[True]:.1f} tokens/s, left alone {rates[False]:.1f}: {ratios[-1]:.3f}", flush=True
            )
    spread = f"{min(ratios):.3f}-{max(ratios):.3f}"
    print(f"median {statistics.median(ratios):.3f} ({spread}), {num_failed} requests failed")


def _window(server: Server, options: argparse.Namespace, pair: int, is_killed: bool) -> tuple[float, int]:
    """Tokens a second, and how many requests failed."""
    killing = threading.Timer(KILL_AFTER_SECONDS, _kill_observer, [server.pid])
    if is_killed:
        killing.start()
    load = BenchOptions(
        base_url=server.url,
        random_input_len=128,
        random_output_len=128,
        ignore_eos=True,
        duration=options.duration,
        max_concurrency=options.concurrency,
        num_warmups=2,
        seed=pair,
        disable_tqdm=True,
    )
    figures = Server(server.name, server.url, 0).measured(load)
    return figures.tokens_per_second, figures.num_failed


def _kill_observer(root: int) -> None:
    for child in psutil.Process(root).children(recursive=True):
        if child.cmdline()[:1] == [OBSERVER]:
            os.kill(child.pid, signal.SIGKILL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--duration", type=float, default=8.0, metavar="SECONDS")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("flags", nargs="*")
    return parser.parse_args()


if __name__ == "__main__":
    main()
