"""Hundreds of seeded histories of a whole engine: none breaks a promise, and together they reach every state.

`VLLM_OBS_SIMULATION_SEEDS=17` runs one seed, `=2000:12000` a range of them, in place of the usual ones.
"""

import os
from collections import Counter
from functools import cache

import pytest
from simulation import simulate
from simulation_clients import ABORT_STATES

NUM_SEEDS = 300
NUM_CHUNKS = 10
KEPT_SEEDS = (4187, 4852, 7272, 8811, 9579, 10504, 14254)
"""Seeds beyond the usual ones that once broke a promise."""

REACHED = (
    "preemption",
    "recompute",
    "prefix hit",
    "chunked prefill",
    "NaN row",
    "NaN shared",
    "several steps in flight",
    "a step begun ahead",
    "held for a grammar",
    "no answer",
    "poison",
    *(f"abort: {state}" for state in ABORT_STATES),
    "deadline",
    "deadline while queued",
    "restart",
    "death in a step",
    "overrun",
    "refused: no engine",
    "stop string",
    "duplicate ADD",
    "failed step (before)",
    "failed step (after)",
    "failed step (in sampling)",
    "dropped: generation",
    "dropped: decode",
    "front dropped: generation",
    "pause: abort",
    "pause: wait",
    "pause: keep",
    "wait: kv_blocks",
    "wait: max_num_seqs",
    "wait: token_budget",
    "wait: prefill_share",
    "wait: paused",
    "ending: stop",
    "ending: length",
    "ending: abort",
    "ending: error engine_dead",
    "ending: error invalid_logits",
    "ending: error internal_error",
    "ending: error context_length_exceeded",
    "ending: error overloaded",
    "ending: error too_many_queued_tokens",
    "ending: error under_pressure",
    "ending: error timeout",
    "ending: error unsupported",
)


def chosen_seeds() -> list[int]:
    """The usual seeds, or those that the environment names."""
    begin, colon, end = os.environ.get("VLLM_OBS_SIMULATION_SEEDS", f"0:{NUM_SEEDS}").partition(":")
    return list(range(int(begin), int(end) if colon else int(begin) + 1))


@cache
def reached_in(chunk: int) -> Counter[str]:
    """What every so-many-th seed reached; the first history that breaks is raised."""
    reached: Counter[str] = Counter()
    for seed in chosen_seeds()[chunk::NUM_CHUNKS]:
        reached += simulate(seed).reached
    return reached


@pytest.mark.timeout(3600)  # by hand there may be ten thousand
@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_no_history_breaks_a_promise(chunk: int) -> None:
    reached_in(chunk)


@pytest.mark.long
@pytest.mark.skipif("VLLM_OBS_SIMULATION_SEEDS" in os.environ, reason="not the usual seeds")
@pytest.mark.parametrize("begin", range(NUM_SEEDS, 10_000, 970))
def test_nor_does_any_of_ten_thousand(begin: int) -> None:
    for seed in range(begin, min(begin + 970, 10_000)):
        simulate(seed)


def test_what_broke_once_holds() -> None:
    for seed in KEPT_SEEDS:
        simulate(seed, is_ahead=False)
        simulate(seed, is_ahead=True)


def test_a_seed_is_the_same_history_each_time() -> None:
    assert simulate(4) == simulate(4)


@pytest.mark.skipif("VLLM_OBS_SIMULATION_SEEDS" in os.environ, reason="not the usual seeds")
@pytest.mark.parametrize("state", REACHED)
def test_sometimes(state: str) -> None:
    """Counted over all seeds: whatever is never reached is not tested."""
    assert sum((reached_in(chunk) for chunk in range(NUM_CHUNKS)), Counter[str]())[state] > 0
