"""Measures how long a server takes from its command to the first 200 of /readyz, and where that went.

.venv/bin/python benchmarks/startup.py [--runs 5] [-- flags of the server]
"""

import argparse
import statistics
import subprocess
import sys
import time

from started_server import started

PORT = 8942


def main() -> None:
    """Start and end a server several times; print each start, the median, and where the last one went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    lengths: list[float] = []
    for number in range(options.runs):
        begun_at = time.monotonic()
        with started(options.flags, PORT):
            lengths.append(time.monotonic() - begun_at)
            print(f"ready after {lengths[-1]:.2f} s", flush=True)
            if number == options.runs - 1:
                subprocess.run([sys.executable, "-m", "vllm_obs", "startup"], check=False)
    print(
        f"median {statistics.median(lengths):.2f} s ({min(lengths):.2f}-{max(lengths):.2f}), {options.runs} starts"
    )


if __name__ == "__main__":
    main()
