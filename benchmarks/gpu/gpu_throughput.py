"""Tokens a second of whole models, with CUDA graphs and without, beside the least time for a step's bytes."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from gpu_budget import Part
from gpu_card import Card, Ceilings
from gpu_child import run_until
from gpu_models import MODELS, write_model

SCRIPT = Path(__file__).with_name("gpu_engine_run.py")
BATCHES, DRY_BATCHES = [1, 32, 256], [1, 3]
MODES = 2
STOP_SECONDS = 5.0
"""Before the deadline the model's process is told to begin nothing more."""


def measure_throughput(card: Card, ceilings: Ceilings, part: Part, directory: Path) -> list[dict[str, Any]]:
    """A row for each model, mode and batch size."""
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(MODELS):
        share = part.left_seconds / (len(MODELS) - number)
        if share < STOP_SECONDS * 2:
            part.cut(name)
            continue
        found, trouble = _run(card, write_model(directory, name, is_tiny=card.is_dry), share)
        rows += [{"model": name, **_beside_floor(row, ceilings)} for row in found]
        missing = MODES * len(_batches(card)) - len(found)
        if missing:
            part.cut(f"{name}: {missing} of {MODES * len(_batches(card))} measurements{trouble}")
    return rows


def _batches(card: Card) -> list[int]:
    return DRY_BATCHES if card.is_dry else BATCHES


def _run(card: Card, model: Path, seconds: float) -> tuple[list[dict[str, Any]], str]:
    """What a process of its own measured, and what went wrong in it, if anything did."""
    order = {
        "model": str(model),
        "device": card.device.type,
        "batches": _batches(card),
        "input_len": 8 if card.is_dry else 128,
        "most_output_len": 8 if card.is_dry else 512,
        "seconds": 2.0 if card.is_dry else min(8.0, seconds / 10),
        "deadline": time.monotonic() + seconds - STOP_SECONDS,
    }
    ended = run_until([sys.executable, str(SCRIPT), json.dumps(order)], seconds)
    rows = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    if ended.exit_code == 0:
        return rows, ""
    cause = "its time was up" if ended.is_cut_short else (ended.errors.strip().splitlines() or ["no word"])[-1]
    return rows, f" ({cause})"


def _beside_floor(row: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    """With rates, and the floor: weights once a step, and keys and values of all rows, at the speed of a copy."""
    num_bytes = row["weight_bytes"] + int(row["batch"] * row["mean_seq_len"]) * row["kv_bytes_per_token"]
    step_seconds = row["seconds"] / row["num_steps"] if row["num_steps"] else None
    floor = ceilings.floor_seconds(num_bytes)
    return row | {
        "tokens_per_second": row["num_tokens"] / row["seconds"] if row["seconds"] else None,
        "step_seconds": step_seconds,
        "floor_seconds": floor,
        "share_of_floor": floor / step_seconds if step_seconds else None,
    }
