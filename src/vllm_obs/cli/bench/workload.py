"""Which prompts are sent and when: both drawn from a seed."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from vllm_obs.cli.bench.options import BenchOptions


class Prompt(NamedTuple):
    """One request to make."""

    token_ids: list[int]
    max_tokens: int


def random_prompts(options: BenchOptions, seed: int) -> Iterator[Prompt]:
    """Prompts without end: a shared prefix, then ids that no other prompt begins with (but by chance)."""
    prefix_draw = random.Random(f"prefix {options.seed}")
    prefix = _draw_ids(prefix_draw, options, options.random_prefix_len)
    draw = random.Random(seed)
    while True:
        length = _vary(draw, options.random_input_len, options.random_range_ratio)
        max_tokens = _vary(draw, options.random_output_len, options.random_range_ratio)
        yield Prompt(prefix + _draw_ids(draw, options, length), max_tokens)


def _draw_ids(draw: random.Random, options: BenchOptions, length: int) -> list[int]:
    return draw.choices(range(*options.random_token_ids), k=length)


def _vary(draw: random.Random, length: int, ratio: float) -> int:
    """A length between (1 - ratio) and (1 + ratio) of `length`, at least 1."""
    if not ratio:
        return length
    return max(1, draw.randint(round(length * (1 - ratio)), round(length * (1 + ratio))))


def arrival_seconds(request_rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Moments of arrival since the start, without end; the first is 0.

    The times between are gamma distributed with mean 1 / rate and shape `burstiness` (1: a Poisson process).
    """
    draw = random.Random(f"arrivals {seed}")
    moment = 0.0
    while True:
        yield moment
        moment += draw.gammavariate(burstiness, 1.0 / (request_rate * burstiness))
