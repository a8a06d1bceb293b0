"""What telemetry costs a server: pairs of servers with all of it and with none, as long as there is time."""

import re
import socket
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from gpu_budget import Part
from gpu_child import run_until
from gpu_models import write_model

SCRIPT = Path(__file__).parent.parent / "telemetry.py"
MODEL = "qwen3-0.6b"
"""The faster the model, the more telemetry weighs."""
LEAST_SECONDS = 20.0
NUM_PAIRS = 8
"""As many as there is time for."""
_RATE = re.compile(r"^(telemetry|none) +([\d.]+) tokens/s", re.MULTILINE)
_FLAGS = ("--load-format", "dummy", "--generation-config", "vllm")
_LOAD = {"--concurrency": "64", "--num-prompts": "768", "--input-len": "128", "--output-len": "128"}
_DRY_LOAD = {"--concurrency": "1", "--num-prompts": "2", "--input-len": "8", "--output-len": "4"}
_GPU_FLAGS = (
    *("--device", "cuda", "--max-model-len", "1024", "--max-num-seqs", "64"),
    # Few graphs: a server is up sooner, and a full batch has one.
    *("--cudagraph-capture-sizes", "1", "16", "32", "48", "64"),
)
_DRY_FLAGS = ("--device", "cpu", "--attention-backend", "torch")


def measure_telemetry(part: Part, directory: Path, *, is_dry: bool) -> dict[str, Any]:
    """The ratio of tokens a second, with over without, of each pair, and their mean."""
    pairs: list[dict[str, float]] = []
    if part.has_time(LEAST_SECONDS):
        pairs = _pairs(part, write_model(directory / "telemetry", MODEL, is_tiny=is_dry), is_dry=is_dry)
    if not pairs:
        part.cut("not one pair of servers")
    ratios = [pair["telemetry"] / pair["none"] for pair in pairs]
    return {"pairs": pairs, "ratios": ratios, "mean_ratio": fmean(ratios) if ratios else None}


def _pairs(part: Part, model: Path, *, is_dry: bool) -> list[dict[str, float]]:
    """Those that were over in time, each with tokens a second by kind."""
    load = _DRY_LOAD if is_dry else _LOAD
    command = [
        *(sys.executable, str(SCRIPT), "--pairs", "1" if is_dry else str(NUM_PAIRS), "--port", str(_free_port())),
        *(word for pair in load.items() for word in pair),
        *("--", str(model), *_FLAGS, *(_DRY_FLAGS if is_dry else _GPU_FLAGS)),
    ]
    ended = run_until(command, part.left_seconds)
    if ended.exit_code and not ended.is_cut_short:
        part.fail(ended.last_word)
    rates = [(kind, float(rate)) for kind, rate in _RATE.findall(ended.output)]
    return [dict(pair) for pair in zip(rates[::2], rates[1::2], strict=False)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
