"""What telemetry costs a server: pairs of servers with all of it and with none, as long as there is time."""

import re
import socket
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from gpu_budget import Part
from gpu_card import Card
from gpu_child import run_until
from gpu_models import write_model

SCRIPT = Path(__file__).parent.parent / "telemetry.py"
MODEL = "qwen3-0.6b"
"""The faster the model, the more telemetry weighs."""
_RATE = re.compile(r"^(telemetry|none) +([\d.]+) tokens/s", re.MULTILINE)
_FLAGS = ("--load-format", "dummy", "--generation-config", "vllm")


def measure_telemetry(card: Card, part: Part, directory: Path) -> dict[str, Any]:
    """The ratio of tokens a second, with over without, of each pair, and their mean."""
    model = write_model(directory / "telemetry", MODEL, is_tiny=card.is_dry)
    pairs: list[dict[str, float]] = []
    needed = 0.0
    while part.has_time(needed) and not (card.is_dry and pairs):
        begun = time.monotonic()
        found = _pair(card, model, part)
        if len(found) < len(("telemetry", "none")):
            break
        pairs.append(found)
        needed = time.monotonic() - begun
    ratios = [pair["telemetry"] / pair["none"] for pair in pairs]
    if not pairs:
        part.cut("not one pair of servers")
    return {"pairs": pairs, "ratios": ratios, "mean_ratio": fmean(ratios) if ratios else None}


def _pair(card: Card, model: Path, part: Part) -> dict[str, float]:
    """Tokens a second by kind; not all of them where the time was up or a server failed."""
    amount = ("1", "2", "8", "4") if card.is_dry else ("64", "256", "128", "128")
    names = ("--concurrency", "--num-prompts", "--input-len", "--output-len")
    sizes = [word for pair in zip(names, amount, strict=True) for word in pair]
    device = ("--device", "cpu", "--attention-backend", "torch") if card.is_dry else ("--device", "cuda")
    pair = ("--pairs", "1", "--port", str(_free_port()))
    command = [sys.executable, str(SCRIPT), *pair, *sizes, "--", str(model), *_FLAGS, *device]
    ended = run_until(command, part.left_seconds)
    if ended.exit_code and not ended.is_cut_short:
        part.cut((ended.errors.strip().splitlines() or ["the servers ended without a word"])[-1])
    return {kind: float(rate) for kind, rate in _RATE.findall(ended.output)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
