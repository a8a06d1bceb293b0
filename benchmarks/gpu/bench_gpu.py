"""Measures and checks everything that runs on a GPU, in eight minutes at most: on the day there is one, run this.

    make bench-gpu                           # writes gpu.json and gpu.md into --output
    make bench-gpu ARGS="--dry-run"          # no GPU: every line on tiny sizes under Triton's interpreter

(a) every Triton kernel against float64; (b) each one's bytes or operations against what the card was seen to do at
best (a large copy, a large bf16 product); (c) tokens a second of models in the shapes of Llama 3 8B and Qwen3 0.6B
with random weights, at batch 1, 32 and 256, with CUDA graphs and without, beside the least time for their bytes;
(d) tokens a second with telemetry over without. Parts are cut short rather than overrun, and what was cut is said.
Exits with 1 when a kernel is wrong, 78 without a GPU. `vllm-obs autotune` before it, if at all.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_budget import Budget
    from gpu_card import Card

ROOT = Path(__file__).parents[2]
SECONDS = 480.0
SHARES = {"ceilings": 15.0, "checks": 90.0, "speeds": 75.0, "throughput": 200.0, "telemetry": 100.0}
"""Parts in order, and seconds of each where there are SECONDS in all."""
EXIT_WRONG, EXIT_NO_GPU = 1, 78


def main() -> int:
    """Run the parts, write the files."""
    options = _options()
    sys.path.append(str(ROOT / "tests/support"))
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton's kernels are imported, here and in children
    card = _card(options.dry_run)
    if card is None:
        return EXIT_NO_GPU
    from gpu_budget import Budget
    from gpu_report import write_report

    chosen = {name: share for name, share in SHARES.items() if name in (*options.parts, "ceilings")}
    budget = Budget(options.seconds, chosen, say=_say)
    with tempfile.TemporaryDirectory(prefix="vllm-obs-bench-gpu-") as directory:
        found = {"about": card.facts(), **_run_parts(card, budget, Path(directory))}
    found |= {"cuts": budget.cuts, "seconds": budget.used_seconds, "budget_seconds": options.seconds}
    files = write_report(options.output, found)
    print(files[1].read_text())
    print(f"{files[0]} and {files[1].name} are written.")
    return EXIT_WRONG if any(not row["is_right"] for row in found.get("checks", [])) else 0


def _run_parts(card: "Card", budget: "Budget", directory: Path) -> dict[str, Any]:
    # Only now: it is decided whether kernels are interpreted.
    from gpu_card import Ceilings, measure_ceilings
    from gpu_checks import run_checks
    from gpu_speeds import measure_speeds
    from gpu_telemetry import measure_telemetry
    from gpu_throughput import measure_throughput

    found: dict[str, Any] = {}
    ceilings = Ceilings(math.inf, math.inf)
    parts: dict[str, Callable[[Any], Any]] = {
        "ceilings": lambda part: measure_ceilings(card, part),
        "checks": lambda part: run_checks(card, part),
        "speeds": lambda part: measure_speeds(card, ceilings, part),
        "throughput": lambda part: measure_throughput(card, ceilings, part, directory),
        "telemetry": lambda part: measure_telemetry(card, part, directory),
    }
    for name in budget.shares:
        part = budget.part(name)
        _say(f"{name}: {part.left_seconds:.0f} s")
        try:
            found[name] = parts[name](part)
        except Exception as error:  # the other parts may succeed, and a borrowed GPU is gone soon
            part.cut(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        if isinstance(made := found.get(name), Ceilings):
            ceilings, found[name] = made, made.plain()
    return found


def _card(is_dry: bool) -> "Card | None":
    if is_dry:
        from gpu_card import Card

        return Card.dry()
    import torch

    if not torch.cuda.is_available():
        print("bench-gpu: there is no GPU; --dry-run runs it on tiny sizes without one", file=sys.stderr)
        return None
    from gpu_card import Card

    return Card.current()


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
