"""Regimes: seeded, sorted, within the limits, and each shows what it is named for and nothing else."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import of_kind, synthetic_facts

from vllm_obs.engine.synthetic.prompts import prompt_of
from vllm_obs.engine.synthetic.regimes import ACCOUNTS, REGIMES, SYNTHETIC_LIMITS, Arrival, blend, rng_of
from vllm_obs.telemetry.records import RequestEnded, StepPlanned, WorkerStep

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 10))]
SECONDS = 20.0
MAX_ARRIVALS_A_SECOND = 20
NAMES = st.sampled_from(list(REGIMES))

LIMITED = ("kv_pressure", "token_budget", "preemption_storm", "long_prefill", "max_num_seqs")
PAIRS = [pair for pair in combinations(LIMITED, 2) if pair != ("token_budget", "long_prefill")]
"""Not those two: both are a full budget."""


@settings(deadline=None)
@given(NAMES, st.integers(0, 2**63 - 1), st.floats(0.1, 120.0))
def test_arrivals_are_sorted_bounded_and_the_same_for_the_same_seed(name: str, seed: int, seconds: float) -> None:
    arrivals = REGIMES[name].arrivals(rng_of(name, seed), seconds)
    assert arrivals == REGIMES[name].arrivals(rng_of(name, seed), seconds)
    moments = [arrival.at_seconds for arrival in arrivals]
    assert moments == sorted(moments)
    assert all(0 <= moment < seconds for moment in moments)
    assert len(arrivals) <= MAX_ARRIVALS_A_SECOND * seconds + 64
    limits = SYNTHETIC_LIMITS
    for arrival in arrivals:
        num_tokens = arrival.num_prompt_tokens + arrival.max_tokens
        assert 0 < num_tokens <= min(limits.max_model_len, limits.num_blocks * limits.block_size)
        assert arrival.account in ACCOUNTS


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 99))
def test_other_seeds_rounds_and_regimes_have_other_arrivals(seed: int, round_number: int) -> None:
    regime = REGIMES["calm"]
    first = regime.arrivals(rng_of("calm", seed, round_number), 60.0)
    assert first != regime.arrivals(rng_of("calm", seed + 1, round_number), 60.0)
    assert first != regime.arrivals(rng_of("calm", seed, round_number + 1), 60.0)
    assert first != regime.arrivals(rng_of("stalled_rank", seed, round_number), 60.0)


@settings(deadline=None)
@given(st.floats(0.1, 3600.0))
def test_stalls_are_over_before_their_time_is(seconds: float) -> None:
    regime = REGIMES["stalled_rank"]
    stalls = regime.stalls(seconds)
    assert all(stall.at_seconds > 0 and stall.at_seconds + stall.seconds < seconds for stall in stalls)
    assert len(stalls) == len({stall.at_seconds for stall in stalls}) <= max(1, seconds / 10)
    assert bool(stalls) == (seconds > regime.stall_seconds), "a short time has one too"
    assert all(not REGIMES[name].stalls(seconds) for name in REGIMES if name != "stalled_rank")


def test_a_blend_is_all_of_its_parts_in_order() -> None:
    names = ["calm", "kv_pressure"]
    arrivals, stalls = blend([*names, "stalled_rank"], 3, 30.0)
    parts = [REGIMES[name].arrivals(rng_of(name, 3), 30.0) for name in (*names, "stalled_rank")]
    assert arrivals == sorted((each for part in parts for each in part), key=lambda each: each.at_seconds)
    assert stalls == REGIMES["stalled_rank"].stalls(30.0)


def test_prompts_share_their_prefix_only() -> None:
    shared = Arrival(0.0, 100, 8, "system", "")
    first, second = prompt_of(shared, 1).tolist(), prompt_of(shared, 2).tolist()
    assert first[:64] == second[:64]
    assert first[64:] != second[64:]
    assert len(first) == 100
    alone = shared._replace(prefix="")
    assert prompt_of(alone, 1).tolist()[:16] != prompt_of(alone, 2).tolist()[:16]
    assert len(prompt_of(shared._replace(num_prompt_tokens=1), 1)) == 1


class Shares(NamedTuple):
    """What a run showed: the share of its steps with each reason of the queue's head, and more."""

    head: dict[str, float]
    num_preemptions: int
    num_requests: int
    full: float
    longest_wait_seconds: float


def wait_of(step: tuple[WorkerStep, WorkerStep]) -> float:
    """How long the first rank waited for the second in a step."""
    first, second = step
    return (second.forwarded_at - first.forwarded_at) / 1e9


def shares_of(regimes: Sequence[str], seed: int) -> Shares:
    facts = synthetic_facts(regimes, seed, SECONDS)
    steps = [planned for planned in of_kind(facts, StepPlanned) if planned.request_ids]
    heads = Counter(planned.head_reason for planned in steps)
    workers = of_kind(facts, WorkerStep)
    ranks = [[step for step in workers if step.rank == rank] for rank in range(2)]
    budget = SYNTHETIC_LIMITS.max_num_batched_tokens
    ended = of_kind(facts, RequestEnded)
    assert {each.finish_reason for each in ended} == {"length"}
    return Shares(
        head={reason: count / len(steps) for reason, count in heads.items()},
        num_preemptions=sum(len(planned.preempted_ids) for planned in steps),
        num_requests=len(ended),
        full=sum(sum(planned.num_scheduled_tokens) == budget for planned in steps) / len(steps),
        longest_wait_seconds=max(map(wait_of, zip(ranks[0], ranks[1], strict=True))),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_calm_lets_nobody_wait(seed: int) -> None:
    shares = shares_of(["calm"], seed)
    assert (shares.head, shares.num_preemptions, shares.full) == ({"": 1.0}, 0, 0.0)
    assert shares.longest_wait_seconds < 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_kv_pressure_waits_for_blocks_and_preempts_little(seed: int) -> None:
    shares = shares_of(["kv_pressure"], seed)
    assert shares.head["kv_blocks"] > 0.5
    assert shares.head.get("token_budget", 0.0) < 0.15
    assert "max_num_seqs" not in shares.head
    assert shares.num_preemptions <= 0.3 * shares.num_requests


@pytest.mark.parametrize("seed", SEEDS)
def test_token_budget_fills_every_step(seed: int) -> None:
    shares = shares_of(["token_budget"], seed)
    assert shares.head["token_budget"] > 0.7
    assert shares.full > 0.85
    assert set(shares.head) <= {"token_budget", ""}
    assert shares.num_preemptions == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_preemption_storm_preempts_as_many_as_there_are(seed: int) -> None:
    shares = shares_of(["preemption_storm"], seed)
    assert shares.num_preemptions > 0.5 * shares.num_requests
    assert shares.full < 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_prefill_fills_steps_while_hardly_anybody_waits(seed: int) -> None:
    shares = shares_of(["long_prefill"], seed)
    assert 0.05 < shares.full < 0.3
    assert shares.head[""] > 0.85
    assert shares.num_preemptions == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stalled_rank_holds_one_step_up_for_seconds(seed: int) -> None:
    shares = shares_of(["stalled_rank"], seed)
    assert shares.longest_wait_seconds > REGIMES["stalled_rank"].stall_seconds / 2
    assert shares.head[""] > 0.95
    assert shares.num_preemptions == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_max_num_seqs_waits_for_a_place(seed: int) -> None:
    shares = shares_of(["max_num_seqs"], seed)
    assert shares.head["max_num_seqs"] > 0.5
    assert set(shares.head) <= {"max_num_seqs", "", "token_budget"}
    assert shares.num_preemptions == 0


@pytest.mark.parametrize("regimes", PAIRS, ids="+".join)
def test_a_blend_shows_both(regimes: tuple[str, str]) -> None:
    shares = shares_of(regimes, seed=3)
    shown = {
        "kv_pressure": shares.head.get("kv_blocks", 0.0) > 0.1,
        "token_budget": shares.head.get("token_budget", 0.0) > 0.1,
        "preemption_storm": shares.num_preemptions > 20,
        "long_prefill": shares.full > 0.04,
        "max_num_seqs": shares.head.get("max_num_seqs", 0.0) > 0.1,
    }
    assert [name for name in regimes if not shown[name]] == []
