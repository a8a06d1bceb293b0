"""A step's sums: its time by limit, what it lost standing still and by whom, and what its tokens were for."""

from typing import Any

import pytest

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import EngineDescribed, RequestSubmitted, StepAnswered, StepPlanned, WorkerStep
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.verdict_tally import (
    MAX_NOTES,
    MAX_STALLS,
    MEANS,
    RankLag,
    StepTally,
    during,
    rank_lag,
    step_lag,
)

MS = 10**6
BUDGET = 512
DESCRIBED = EngineDescribed(
    0, 1, ["m"], "float32", "cpu", 8192, 32, BUDGET, 100, 16, "float32", 1, 0.9, True, 0, 2, 1000, 1, 10, 1
)


def ledger(request_id: str, num_prompt: int, num_preemptions: int = 0) -> SequenceLedger:
    submitted = RequestSubmitted(
        request_id, 0, "h", "", 0, 1, 1, "chat", False, "m", "", *(0,) * 5, num_prompt, 8, 0, 0.0, 1.0, 0
    )
    return SequenceLedger(submitted, num_preemptions=num_preemptions)


def worker(rank: int, forwarded_ms: float, sampled_ms: float, received_ms: float = 1.0) -> WorkerStep:
    received_at, forwarded_at, sampled_at = (int(each * MS) for each in (received_ms, forwarded_ms, sampled_ms))
    return WorkerStep(1, rank, received_at, received_at, forwarded_at, forwarded_at, sampled_at, 1, 1)


def step(
    rows: dict[str, int], workers: list[WorkerStep] | None = None, over_ms: float = 20, **changes: Any
) -> StepFacts:
    columns: list[list[Any]] = [list(rows), list(rows.values()), [0] * len(rows), [0] * len(rows)]
    planned = StepPlanned(1, 0, MS, *columns, *([] for _ in range(6)), "", len(rows), 0, 50, 10, 40)
    over_at = int(over_ms * MS)
    answered = StepAnswered(1, over_at, over_at, over_at, list(rows), [1] * len(rows), 0)
    workers = workers if workers is not None else [worker(0, over_ms - 2, over_ms - 1)]
    return StepFacts("0", planned._replace(**changes), workers=workers, answered=answered)


def tally(*ledgers: SequenceLedger) -> StepTally:
    by_id = {each.request_id: each for each in ledgers}
    return StepTally(by_id.get, DESCRIBED)


def picked(sums: dict[str, float], *names: str) -> list[float]:
    return [sums.get(name, 0) for name in names]


def test_a_steps_time_is_its_limits() -> None:
    facts = step({"a": 1}, head_reason="kv_blocks", num_waiting=3)
    sums = tally().add(facts, 18 * MS)
    assert facts.limit == "kv_blocks"
    assert picked(sums, "ns", "used_ns", "limit/kv_blocks", "fresh_kv_ns", "kv_ns", "stalled_ns") == [
        *[20 * MS] * 5,
        0,
    ]
    assert picked(sums, "waiting_ns", "running_ns", "active_ns") == [60 * MS, 20 * MS, 800 * MS]


def test_steps_in_flight_together_share_the_time() -> None:
    counted = tally()
    first = counted.add(step({"a": 1}, over_ms=20), None)
    second = counted.add(step({"b": 1}, over_ms=30), None)
    assert (first["ns"], second["ns"]) == (20 * MS, 10 * MS)


def test_tokens_are_told_by_what_they_are_for() -> None:
    counted = tally(ledger("long", 6 * BUDGET), ledger("short", 100), ledger("again", 90, num_preemptions=1))
    sums = counted.add(step({"long": 300, "short": 100, "again": 50, "d": 1, "e": 1}), None)
    names = ("tokens", "long_tokens", "prompt_tokens", "recomputed_tokens", "long_steps", "delayed_tokens")
    assert picked(sums, *names) == [452, 300, 100, 50, 1, 2]


def test_a_full_step_is_shared_between_long_prompts_and_others() -> None:
    counted = tally(ledger("long", 6 * BUDGET), ledger("short", 400))
    facts = step({"long": 128, "short": 384}, head_reason="token_budget", num_waiting=1)
    assert counted.add(facts, None)["budget_ns"] == 15 * MS
    alone = step({"short": BUDGET})
    assert (counted.add(alone, None).get("budget_ns", 0), alone.limit) == (0, "token_budget")


def test_a_step_far_over_its_like_stood_still() -> None:
    counted = tally()
    sums = counted.add(step({"a": 1}, over_ms=2001), expected_ns=19 * MS)
    assert (sums["stalled_ns"], sums["used_ns"], sums["stall/0"]) == (1980 * MS, 21 * MS, 1980 * MS)
    assert [(stall.rank, stall.expected_ns) for stall in counted.stalls] == [(0, 19 * MS)]


@pytest.mark.parametrize(("over_ms", "expected_ns"), [(2001, None), (2001, 600 * MS), (900, 10 * MS)])
def test_a_long_step_whose_like_is_unknown_or_long_did_not(over_ms: float, expected_ns: int | None) -> None:
    """Nor one that was late by less than a second: a busy machine does that."""
    assert tally().add(step({"a": 1}, over_ms=over_ms), expected_ns)["stalled_ns"] == 0


def test_the_rank_that_the_others_wait_for_is_named_without_knowing_its_like() -> None:
    """Both ranks sample together: which of them came late is seen before."""
    workers = [worker(0, 20, 2000), worker(1, 1990, 2000)]
    counted = tally()
    sums = counted.add(step({"a": 1}, workers, over_ms=2001), None)
    assert counted.stalls[-1].rank == 1
    assert sums["stalled_ns"] == sums["stall/1"] == 1970 * MS


def test_one_late_step_counts_little_for_who_is_always_last() -> None:
    """900 ms of a hiccup, and 40 of 70 ms as they may be in every step."""
    hiccup = tally().add(step({"a": 1}, [worker(0, 20, 930), worker(1, 920, 930)], over_ms=931), None)
    always = tally().add(step({"a": 1}, [worker(0, 30, 71), worker(1, 70, 71)], over_ms=72), None)
    assert picked(hiccup, "lag/1", "ranks_ns", "stalled_ns") == [250 * MS, 279 * MS, 0]
    assert picked(always, "lag/1", "ranks_ns") == [40 * MS, 70 * MS]


def test_a_conditions_figures_are_of_the_steps_in_which_it_held() -> None:
    counted = tally(ledger("long", 6 * BUDGET), ledger("short", 400))
    calm = counted.add(step({"a": 1}), None)
    full = {"head_reason": "token_budget", "num_waiting": 3, "num_running": 2}
    sums = counted.add(step({"long": 128, "short": 384}, over_ms=40, **full), None)
    assert not any("@" in name for name in calm)
    # Three quarters of the step are the ordinary prompt's.
    names = (during(name, "budget_ns") for name in MEANS)
    assert picked(sums, *names) == [45 * MS, 30 * MS, 600 * MS, 384, 0.75]


def test_the_lag_is_where_ranks_are_furthest_apart() -> None:
    assert rank_lag([worker(0, 20, 30), worker(1, 21, 30)]) == RankLag(1, MS)
    assert rank_lag([worker(0, 50, 60, received_ms=40), worker(1, 51, 60)]) == RankLag(0, 39 * MS)
    assert (rank_lag([worker(3, 20, 30)]), rank_lag([])) == (RankLag(3, 0), RankLag(-1, 0))


def test_who_was_preempted_waits_until_it_runs_again_or_leaves() -> None:
    counted = tally()
    waits = {"num_waiting": 2, "head_reason": "kv_blocks"}
    seen = [
        counted.add(step({"a": 1}, preempted_ids=["v", "w"], **waits), None),
        counted.add(step({"a": 1}, over_ms=40, resumed_ids=["v"], **waits), None),
    ]
    counted.released("w")
    seen.append(counted.add(step({"a": 1}, over_ms=60, **waits), None))
    assert [picked(sums, "preempted", "preempted_waiting_ns", "fresh_kv_ns") for sums in seen] == [
        [2, 40 * MS, 0],
        [0, 20 * MS, 0],
        [0, 0, 20 * MS],
    ]


def test_a_head_that_is_too_large_for_the_free_blocks_waits_for_blocks() -> None:
    """60 blocks are free or cached; 961 tokens need 61."""
    for num_prompt, limit in ((961, "kv_blocks"), (960, "token_budget")):
        counted = tally()
        facts = step({"a": 1}, head_reason="token_budget", num_waiting=1)
        counted.note_head(facts.planned, ledger("head", num_prompt))
        counted.add(facts, None)
        assert facts.limit == limit


def test_all_it_keeps_is_bounded() -> None:
    counted = tally()
    for number in range(2 * MAX_NOTES):
        facts = step({"a": 1}, over_ms=2001 + number, preempted_ids=[str(number)], num_waiting=3)
        counted.note_head(facts.planned._replace(step=number + 10), ledger("head", 5000))
        counted.add(facts, MS)
    assert len(counted.stalls) <= MAX_STALLS
    assert len(counted._too_large) <= MAX_NOTES
    assert len(counted._preempted) == 3


def test_a_later_stage_of_a_pipeline_is_not_late() -> None:
    ranks = [worker(0, 500, 501), worker(1, 505, 506), worker(2, 1900, 1901), worker(3, 1904, 1905)]
    facts = step({"a": 1}, ranks, over_ms=1910)
    facts.num_shards = 2
    assert step_lag(facts) == RankLag(1, 5 * MS)
    sums = tally().add(facts, 1900 * MS)
    assert picked(sums, "lag/1", "stalled_ns") == [5 * MS, 0]


def test_in_a_pipeline_of_single_ranks_the_longest_is_named_and_none_lags() -> None:
    facts = step({"a": 1}, [worker(0, 1800, 1801), worker(1, 2000, 2001, received_ms=2)], over_ms=2010)
    facts.num_shards = 1
    assert step_lag(facts) == RankLag(0, 0)
    sums = tally().add(facts, 10 * MS)
    assert [name for name in sums if name.startswith("lag/")] == []
    assert sums["stall/0"] == sums["stalled_ns"] > 0
