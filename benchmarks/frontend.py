"""Measures what the processes around a model cost: CPU time a streamed token, over an engine that runs no model.

    .venv/bin/python benchmarks/frontend.py [--concurrency 32] [--duration 15] [-- flags of the server]

The steps of the synthetic engine take as long as a model's would (--step-ms), so that the load is one of a server
that keeps up. CPU of the client is not counted.
"""

import argparse
import json

from compare import Server
from started_server import started

from vllm_obs.cli.bench.options import BenchOptions

PORT = 8943
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Its tokenizer makes the text; its weights are not read."""


def main() -> None:
    """Start the server, send the load, print CPU by process."""
    options = _arguments()
    steps = {"base_seconds": options.step_ms / 1e3, "seconds_per_token": 0.0, "seconds_per_row": 0.0}
    flags = [MODEL, "--load-format", "synthetic", "--model-loader-extra-config", json.dumps(steps), *options.flags]
    load = BenchOptions(
        base_url=f"http://127.0.0.1:{PORT}",
        random_input_len=128,
        random_output_len=128,
        ignore_eos=True,
        duration=options.duration,
        max_concurrency=options.concurrency,
        num_warmups=2,
        disable_tqdm=True,
    )
    with started(flags, PORT) as process:
        figures = Server("server", load.url, process.pid).measured(load)
    print(f"concurrency {options.concurrency}: {figures.tokens_per_second:.0f} tokens/s, ITL {figures.itl:.2f} ms")
    for title, spent in figures.cpu_ms_by_title.items():
        print(f"  {title}: {spent:.4f} ms CPU a token")
    print(f"  all: {sum(figures.cpu_ms_by_title.values()):.4f} ms; {figures.num_failed} requests failed")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--duration", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--step-ms", type=float, default=20.0, help="how long a step takes")
    parser.add_argument("flags", nargs="*")
    return parser.parse_args()


if __name__ == "__main__":
    main()
