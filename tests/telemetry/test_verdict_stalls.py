"""What is said of slowness: what stands still, lags, takes longer than it needs, or waits for the front end."""

from dataclasses import replace

from window_facts import limits, minute, only, ratios

from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.verdict_findings import joined
from vllm_obs.telemetry.verdict_stalls import slow_frontend, stalled_rank, worker_slow
from vllm_obs.telemetry.verdict_tally import StalledStep
from vllm_obs.telemetry.verdict_waits import paused, waits

S, MS = 10**9, 10**6


FACTS = minute(**{"stalled_ns": 6, "stall/1": 6.0 * S, "used_ns": 54})
SLOW = StalledStep("0", 77, 1, 100 * S, 106 * S, 6 * S, 20 * MS)
STALL = StallBegun("0", "Worker_TP1", 42, 1, "executing", 9, "T", "…", 100 * S, 110 * S)


def test_a_rank_that_the_watchdog_saw_standing_still_has_an_incident() -> None:
    finding = only(stalled_rank(replace(FACTS, stalls=(SLOW,), noticed=(STALL,))))
    assert finding.says == "Rank 1 stood still for 6.0 s of 60 s: step 77 took 6.02 s, its like take 0.02 s."
    assert (finding.share, finding.evidence["rank"], finding.evidence["worst_step"]) == (0.1, 1.0, 77.0)
    assert (finding.helps[0][:25], finding.is_severe) == ("`vllm-obs incident show`:", True)


def test_a_slow_step_that_nobody_noticed_is_called_slow() -> None:
    finding = only(stalled_rank(replace(FACTS, stalls=(SLOW,))))
    assert finding.says == "Rank 1 was slow: step 77 took 6.02 s, its like take 0.02 s."
    assert not any("incident" in words for words in (*finding.helps, *finding.helps_not))
    assert not finding.is_severe
    twice = only(stalled_rank(replace(FACTS, stalls=(SLOW, SLOW._replace(step=99, lost_ns=2 * S)))))
    assert twice.says.startswith("Rank 1 was slow for 6.0 s of 60 s: step 77 took ")


def test_a_stall_is_past_unless_something_stands_or_lags_still() -> None:
    over = replace(FACTS, stalls=(SLOW,), noticed=(STALL,))
    assert only(stalled_rank(over)).is_past
    assert not only(stalled_rank(replace(over, open_seconds=2.0))).is_past
    assert not only(stalled_rank(replace(over, standing=(STALL,)))).is_past
    lagging = minute(**{"stalled_ns": 6, "ranks_ns": 60, "lag/3": 24.0 * S})
    assert not only(stalled_rank(replace(lagging, stalls=(SLOW,)))).is_past
    assert not joined([only(stalled_rank(over)), only(stalled_rank(replace(over, standing=(STALL,))))])[0].is_past


def test_a_hiccup_is_no_stall() -> None:
    assert stalled_rank(minute(stalled_ns=1)) is None
    assert stalled_rank(minute(stalled_ns=2)) is not None


def test_what_stands_still_now_is_told_in_the_watchdogs_figures() -> None:
    finding = only(stalled_rank(replace(minute(), standing=(STALL,), num_running=3, num_waiting=1)))
    assert finding.says == (
        "The engine has stood still for 10.0 s: rank 1 (Worker_TP1, pid 42) was executing in step 9, and is "
        "stopped by a signal."
    )
    assert finding.helps[0] == "`kill -CONT 42`, which lets it go on; a restart loses the 4 open requests"
    core = STALL._replace(role="EngineCore_DP0", rank=-1, process_state="S")
    found = only(stalled_rank(replace(minute(), standing=(core,), open_seconds=30.0)))
    assert found.says == "The engine has stood still for 30.0 s: EngineCore_DP0 (pid 42) is executing in step 9."
    assert [words[:25] for words in found.helps] == ["the stacks of the process", "`vllm-obs incident show`:"]


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
    late = {"late_outputs": 500, "late_outputs_ns": 175, "late_ns": 45}
    loops = {"loop_samples/0": 60, "loop_lag_seconds/0": 6, "loop_samples/1": 60, "loop_lag_seconds/1": 0}
    waited = minute(outputs=1000, outputs_ns=180, **loops, **late)
    finding = only(slow_frontend(waited))
    assert finding.says == "Tokens wait 350 ms for the API server on their way out; its loop is 100 ms late."
    assert (finding.share, finding.evidence["output_wait_ms_mean"]) == (0.75, 180.0)
    assert slow_frontend(minute(outputs=1000, outputs_ns=100, late_ns=45)) is None


def test_one_hiccup_of_the_api_server_is_no_finding() -> None:
    """Few tokens, and all of a half second wait: a high mean, but half a second of the minute."""
    hiccup = {"outputs": 60, "outputs_ns": 8, "late_outputs": 30, "late_outputs_ns": 8, "late_ns": 0.6}
    assert slow_frontend(minute(**hiccup, **{"loop_samples/0": 2, "loop_lag_seconds/0": 0.6})) is None
    assert slow_frontend(minute(**{**hiccup, "late_ns": 3.0})) is not None


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
