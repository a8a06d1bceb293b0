"""Tokens a second of whole models, with CUDA graphs and without, beside the least time for a step's bytes."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from gpu_budget import Part
from gpu_ceilings import UNKNOWN, Ceilings
from gpu_child import Ended, run_until
from gpu_models import MODELS, write_model

SCRIPT = Path(__file__).with_name("gpu_engine_run.py")
BATCHES, DRY_BATCHES = [1, 32, 256], [1, 3]
MODES = ["graphs", "eager"]
"""Graphs first: where time is short, the other is what can be left out."""
INTERPRETED = {"TRITON_INTERPRET": "1"}
STOP_SECONDS = 8.0
"""Before the deadline the model's process is told to begin nothing more."""


def measure_throughput(ceilings: Ceilings, part: Part, directory: Path, *, is_dry: bool) -> list[dict[str, Any]]:
    """A row for each model, mode and batch size."""
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(MODELS):
        share = part.left_seconds / (len(MODELS) - number)
        if share < STOP_SECONDS * 2:
            part.cut(name)
            continue
        found = _run(part, write_model(directory, name, is_tiny=is_dry), share, is_dry=is_dry)
        rows += [{"model": name, **_beside_floor(row, ceilings)} for row in found]
    return rows


def _run(part: Part, model: Path, seconds: float, *, is_dry: bool) -> list[dict[str, Any]]:
    """What was measured in a process, and in another one where that came to grief. What is missing is said."""
    rows: list[dict[str, Any]] = []
    deadline, modes = time.monotonic() + seconds, list(MODES)
    while modes and (left := deadline - time.monotonic()) > STOP_SECONDS:
        command = [sys.executable, str(SCRIPT), _order(model, modes, left, is_dry=is_dry)]
        ended = run_until(command, left, INTERPRETED if is_dry else None)
        lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
        rows += [line for line in lines if "num_tokens" in line]
        for line in lines:
            if "left_out" in line:
                part.cut(f"{model.name}, {line['mode']}, batch {line['batch']}: {line['left_out']}")
        begun = [line["begun"] for line in lines if "begun" in line]
        modes = _modes_left(part, model.name, modes, begun, ended)
    if modes:
        part.cut(f"{model.name}: {', '.join(modes)}")
    return rows


def _modes_left(part: Part, model: str, modes: list[str], begun: list[str], ended: Ended) -> list[str]:
    """Behind the one in which the process ended, unless it was the time that ended it."""
    if ended.is_cut_short:
        part.cut(f"{model}, {begun[-1] if begun else modes[0]}: its time was up")
        return modes[len(begun) :]
    if ended.exit_code:
        part.fail(f"{model}, {begun[-1] if begun else modes[0]}: {ended.last_word}")
        return modes[max(1, len(begun)) :]
    return []


def _order(model: Path, modes: list[str], seconds: float, *, is_dry: bool) -> str:
    order = {
        "model": str(model),
        "device": "cpu" if is_dry else "cuda",
        "modes": modes,
        "batches": DRY_BATCHES if is_dry else BATCHES,
        "input_len": 4 if is_dry else 128,
        "most_output_len": 4 if is_dry else 512,
        "seconds": 1.0 if is_dry else min(8.0, seconds / 12),
        "deadline": time.monotonic() + seconds - STOP_SECONDS,
    }
    return json.dumps(order)


def _beside_floor(row: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    """With rates, and the floor: weights once a step, and keys and values of all rows, at the speed of a copy."""
    num_bytes = row["weight_bytes"] + int(row["batch"] * row["mean_seq_len"]) * row["kv_bytes_per_token"]
    step_seconds = row["seconds"] / row["num_steps"] if row["num_steps"] else None
    floor = ceilings.floor_seconds(num_bytes) if ceilings is not UNKNOWN else None
    return row | {
        "tokens_per_second": row["num_tokens"] / row["seconds"] if row["seconds"] else None,
        "step_seconds": step_seconds,
        "floor_seconds": floor,
        "share_of_floor": floor / step_seconds if step_seconds and floor is not None else None,
    }
