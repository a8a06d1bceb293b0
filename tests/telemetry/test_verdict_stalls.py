"""What is said of slowness: what stands still, lags, takes longer than it needs, or waits for the front end."""

from dataclasses import replace

from window_facts import limits, minute, only, ratios

from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.verdict_stalls import slow_frontend, stalled_rank, worker_slow
from vllm_obs.telemetry.verdict_tally import StalledStep
from vllm_obs.telemetry.verdict_waits import paused, waits

S, MS = 10**9, 10**6


def test_a_rank_that_stood_still_is_named() -> None:
    facts = minute(**{"stalled_ns": 6, "stall/1": 6.0 * S, "used_ns": 54})
    stall = StalledStep("0", 77, 1, 100 * S, 106 * S, 6 * S, 20 * MS)
    finding = only(stalled_rank(replace(facts, stalls=(stall,))))
    assert finding.says == (
        "Rank 1 stood still for 6.0 s of 60 s: step 77 took 6.02 s where its like take 0.02 s."
    )
    assert (finding.share, finding.evidence["rank"], finding.evidence["worst_step"]) == (0.1, 1.0, 77.0)


def test_a_hiccup_is_no_stall() -> None:
    assert stalled_rank(minute(stalled_ns=1)) is None


def test_what_stands_still_now_is_told_in_the_watchdogs_figures() -> None:
    stall = StallBegun("0", "Worker_TP1", 42, 1, "executing", 9, "T", "…", 100 * S, 110 * S)
    finding = only(stalled_rank(replace(minute(), standing=(stall,))))
    assert finding.says == (
        "The engine stands still since 10.0 s: rank 1 (Worker_TP1, pid 42) is executing in step 9, stopped by a "
        "signal."
    )
    core = only(stalled_rank(replace(minute(), standing=(stall._replace(role="EngineCore_DP0", rank=-1),))))
    assert "EngineCore_DP0 (pid 42) is executing" in core.says


def test_a_step_that_does_not_answer() -> None:
    finding = only(stalled_rank(replace(minute(), open_seconds=7.5)))
    assert finding.says == "A step has not answered for 7.5 s longer than its like took."


def test_a_rank_that_is_always_last() -> None:
    finding = only(stalled_rank(minute(**{"ranks_ns": 60, "lag/3": 24.0 * S, "lag/0": 0.1 * S})))
    assert finding.says == "Rank 3 is behind: the other ranks wait for it 40 % of the steps' time."
    assert stalled_rank(minute(**{"ranks_ns": 60, "lag/3": 6.0 * S})) is None


def test_steps_far_over_the_floor() -> None:
    finding = only(worker_slow(replace(minute(), ratios=ratios(*[4.0] * 60))))
    assert finding.says == "Steps take 4.0 times the least time that as much work took on this machine."
    assert worker_slow(replace(minute(), ratios=ratios(*[4.0] * 10))) is None
    assert worker_slow(replace(minute(), ratios=ratios(*[2.0] * 60, *[9.0] * 20))) is None


def test_tokens_that_wait_for_the_api_server() -> None:
    finding = only(slow_frontend(minute(outputs=1000, outputs_ns=180, loop_samples=60, loop_lag_seconds=6)))
    assert finding.says == "Tokens wait 180 ms for the API server on their way out; its loop is 100 ms late."
    assert finding.share == 0.75
    assert slow_frontend(minute(outputs=1000, outputs_ns=100)) is None


def test_a_pause_is_told_while_somebody_waits() -> None:
    facts = minute(paused_ns=30)
    assert paused(facts) is None
    finding = only(paused(replace(facts, num_waiting=3)))
    assert finding.says == "The engine was paused by order 50 % of the time; 3 requests wait."


def test_waits_for_what_is_no_capacity() -> None:
    found = waits(minute(**limits(waiting_on_grammar=30, waiting_on_remote_kv=3, lora_slots=12)))
    assert [(finding.name, finding.says) for finding in found] == [
        ("grammar_wait", "The next request waits for its grammar to be compiled 50 % of the time."),
        ("lora_slots", "The next request waits for a place for its adapter 20 % of the time."),
    ]
