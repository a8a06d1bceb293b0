"""Measures and checks everything that runs on a GPU, in eight minutes at most: on the day there is one, run this.

    make bench-gpu                           # writes gpu.json and gpu.md into --output
    make bench-gpu ARGS="--dry-run"          # no GPU: every line on tiny sizes under Triton's interpreter

(a) every Triton kernel against float64; (b) each one's bytes or operations against what the card was seen to do at
best (a large copy, a large bf16 product); (c) tokens a second of models in the shapes of Llama 3 8B and Qwen3 0.6B
with random weights, at batch 1, 32 and 256, with CUDA graphs and without, beside the least time for their bytes;
(d) tokens a second with telemetry over without. Parts are cut short rather than overrun, and what was cut is said.
What fails is said too, and the rest goes on: all of it runs in other processes, so that neither an error of the
device nor a kernel that never ends takes more with it than itself. The files are written after each part.
Exits with 1 when a kernel is wrong or something failed, 78 without a GPU. `vllm-obs autotune` goes before it.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_budget import Budget, Part
from gpu_ceilings import UNKNOWN, Ceilings
from gpu_kernels import PARTS as KERNEL_PARTS
from gpu_kernels import measure_kernels
from gpu_report import write_report
from gpu_telemetry import measure_telemetry
from gpu_throughput import measure_throughput

SECONDS = 480.0
SHARES = {"ceilings": 20.0, "checks": 80.0, "speeds": 60.0, "throughput": 190.0, "telemetry": 130.0}
"""Parts in order, and seconds of each where there are SECONDS in all."""
REPORT_SECONDS = 2.0
EXIT_WRONG, EXIT_NO_GPU = 1, 78


def main() -> int:
    """Run the parts, write the files."""
    options = _options()
    if not options.dry_run and not _has_gpu():
        print("bench-gpu: there is no GPU; --dry-run runs it on tiny sizes without one", file=sys.stderr)
        return EXIT_NO_GPU
    chosen = {name: share for name, share in SHARES.items() if name in (*options.parts, "ceilings")}
    bench = Bench(Budget(max(0.0, options.seconds - REPORT_SECONDS), chosen, say=_say), options)
    with tempfile.TemporaryDirectory(prefix="vllm-obs-bench-gpu-") as directory:
        files = bench.run(Path(directory))
    print(files[1].read_text())
    print(f"{files[0]} and {files[1].name} are written.")
    return exit_code(bench.found)


def exit_code(found: dict[str, Any]) -> int:
    """Of the command: nothing may be wrong, and nothing may have failed."""
    is_wrong = any(not row["is_right"] for row in found.get("checks", []))
    return EXIT_WRONG if is_wrong or found["failures"] else 0


class Bench:
    """The parts one after another; `found` is all that is known so far."""

    def __init__(self, budget: Budget, options: argparse.Namespace) -> None:
        self._budget = budget
        self._options = options
        self.found: dict[str, Any] = {"about": {"is_dry_run": options.dry_run}}

    def run(self, directory: Path) -> tuple[Path, Path]:
        """All parts; the files."""
        self._kernels()
        is_dry = self._options.dry_run
        self._part("throughput", lambda part: measure_throughput(self._ceilings(), part, directory, is_dry=is_dry))
        self._part("telemetry", lambda part: measure_telemetry(part, directory, is_dry=is_dry))
        return self._written()

    def _kernels(self) -> None:
        """The parts that one process does in turn."""
        parts = {name: self._budget.part(name) for name in KERNEL_PARTS if name in self._budget.shares}
        last = list(parts)[-1]
        found = self._tried(parts[last], lambda _: measure_kernels(parts, is_dry=self._options.dry_run))
        self.found |= found or {}
        self._written()

    def _part(self, name: str, measure: Callable[[Part], Any]) -> None:
        if name in self._budget.shares:
            self.found[name] = self._tried(self._budget.part(name), measure)
            self._written()

    def _tried(self, part: Part, measure: Callable[[Part], Any]) -> Any:
        _say(f"{part.name}: {part.left_seconds:.0f} s")
        try:
            return measure(part)
        except Exception as error:  # the other parts may succeed, and a borrowed GPU is gone soon
            part.fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            return None

    def _ceilings(self) -> Ceilings:
        measured = self.found.get("ceilings")
        return Ceilings(**measured) if measured else UNKNOWN

    def _written(self) -> tuple[Path, Path]:
        """What there is so far, for the machine may be gone before the end."""
        budget = self._budget
        self.found |= {"failures": budget.failures, "cuts": budget.cuts, "seconds": budget.used_seconds}
        self.found["budget_seconds"] = self._options.seconds
        return write_report(self._options.output, self.found)


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", "--interpret", action="store_true", help="no GPU: tiny sizes, interpreted")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it (default: 480)")
    parser.add_argument("--parts", nargs="+", choices=list(SHARES), default=list(SHARES), help="only these")
    parser.add_argument("--output", type=Path, default=Path("bench-gpu"), help="folder (default: ./bench-gpu)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
