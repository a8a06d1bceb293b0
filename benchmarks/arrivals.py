"""Arrivals of requests: read from recorded traces, many copies of one laid over each other, or made up."""

import csv
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.errors import ConfigError

TRACES = Path(__file__).parent / "traces"
SYNTHETIC = "synthetic"


class Arrival(NamedTuple):
    """A request: when it comes (seconds from the first), how long it is, and whose it is."""

    at: float
    num_prompt_tokens: int
    num_output_tokens: int
    copy: int = 0


class Columns(NamedTuple):
    """What a published trace calls its columns, and how many of its units of time are a second (0: a date)."""

    at: str
    prompt: str
    output: str
    per_second: float


FORMS = (
    Columns("arrived_seconds", "prompt_tokens", "output_tokens", 1.0),
    Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", 0.0),
    Columns("Timestamp", "Request tokens", "Response tokens", 1.0),
    Columns("timestamp", "input_length", "output_length", 1e3),
)
"""Ours, Azure's, BurstGPT's and Mooncake's."""


def read_trace(path: Path, num_rows: int) -> list[Arrival]:
    """The first rows of a trace (.csv or .jsonl). ConfigError for a form that is not known."""
    arrivals = []
    for row in _rows(path):
        columns = next((form for form in FORMS if form.at in row and form.prompt in row), None)
        if columns is None:
            raise ConfigError(f"{path} has columns {', '.join(row)}; known are {', '.join(c.at for c in FORMS)}")
        num_output = int(row[columns.output])
        if num_output > 0:
            arrivals.append(Arrival(_seconds(row[columns.at], columns), int(row[columns.prompt]), num_output))
        if len(arrivals) == num_rows:
            break
    arrivals.sort()
    return [arrival._replace(at=arrival.at - arrivals[0].at) for arrival in arrivals]


def made_up(seed: int, num_rows: int = 2000, per_second: float = 5.0) -> list[Arrival]:
    """Bursts that nobody recorded: gamma-distributed gaps (shape 0.25), log-normal lengths."""
    rng, at, arrivals = random.Random(seed), 0.0, []
    for _ in range(num_rows):
        at += rng.gammavariate(0.25, 4 / per_second)
        num_prompt = min(8000, 1 + int(rng.lognormvariate(6.2, 1.0)))
        arrivals.append(Arrival(at, num_prompt, min(2000, 1 + int(rng.lognormvariate(5.0, 0.9)))))
    return arrivals


def overlaid(traces: Sequence[list[Arrival]], num_copies: int, spread_seconds: float, seed: int) -> list[Arrival]:
    """So many copies of each trace at once, as from so many services, each later by up to that much.

    What is pushed over the end comes at the beginning. 0 spreads them over the whole trace: their bursts fall
    together by chance only. Within a few seconds they all do.
    """
    rng, arrivals, copy = random.Random(seed), [], 0
    for trace in traces:
        length = trace[-1].at + 1e-3
        for _ in range(num_copies):
            shift, copy = rng.uniform(0, spread_seconds or length), copy + 1
            arrivals += [each._replace(at=(each.at + shift) % length, copy=copy) for each in trace]
    return sorted(arrivals)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open() as lines:
        if path.suffix == ".jsonl":
            yield from map(json.loads, lines)
        else:
            yield from csv.DictReader(lines)


def _seconds(value: Any, columns: Columns) -> float:
    if columns.per_second:
        return float(value) / columns.per_second
    date, _, fraction = str(value).partition(".")
    return datetime.fromisoformat(date).timestamp() + float(f"0.{fraction or 0}")
