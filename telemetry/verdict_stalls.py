"""Findings of slowness: what stands still or lags, and workers and front ends that take longer than they need."""

from vllm_obs.telemetry.verdict_capacity import percent
from vllm_obs.telemetry.verdict_tally import STALL, StalledStep
from vllm_obs.telemetry.verdict_window import NS, Finding, WindowFacts

MIN_STALL_SHARE = 0.05
MIN_LAG_SHARE = 0.25
MIN_SLOW_RATIO = 3.0
MIN_SLOW_STEPS = 50
MIN_SLOW_SHARE = 0.2
MIN_OUTPUT_WAIT_MS = 50.0
MIN_OUTPUT_WAIT_STEPS = 2.0
MIN_LOOP_LAG_SECONDS = 0.25
_STALL_HELPS = "`vllm-obs incident`, /inspect/processes and the stacks of the process"
_LIMITS_USELESS = (
    "larger limits (--max-num-seqs, --max-num-batched-tokens, KV blocks): what stands still does not use them"
)


def stalled_rank(facts: WindowFacts) -> Finding | None:
    """A rank, or the engine's process, stands still, has stood still, or is always the last."""
    if facts.standing:
        return _standing(facts)
    share = max(facts.share("stalled_ns"), min(1.0, facts.open_seconds / max(facts.seconds, 1.0)))
    if share >= MIN_STALL_SHARE:
        return _stood(facts, share)
    return _lagging(facts)


def worker_slow(facts: WindowFacts) -> Finding | None:
    """Steps take much longer than the least time that as much work was ever seen to take."""
    num_known, ratio = facts.ratios.num_observed, facts.ratios.quantile(0.5)
    share = facts.share("used_ns")
    if num_known < MIN_SLOW_STEPS or ratio < MIN_SLOW_RATIO or share < MIN_SLOW_SHARE:
        return None
    return Finding(
        "worker_slow",
        share,
        f"Steps take {ratio:.1f} times the least time that as much work took on this machine.",
        {
            "observed_over_floor_p50": ratio,
            "observed_over_floor_worst": facts.ratios.greatest,
            "num_steps_compared": float(num_known),
        },
        ("looking at what else uses this machine, its clock rates and its limits (`vllm-obs profile`)",),
        ("another scheduling limit: the steps themselves are slow",),
    )


def slow_frontend(facts: WindowFacts) -> Finding | None:
    """Tokens that are ready wait for the API server."""
    wait_ms = facts.mean_ms("outputs_ns", "outputs")
    step_ms = facts.mean_ms("used_ns", "steps")
    lag_seconds = facts.ratio("loop_lag_seconds", "loop_samples")
    is_slow = wait_ms >= max(MIN_OUTPUT_WAIT_MS, MIN_OUTPUT_WAIT_STEPS * step_ms)
    if not facts.sums["outputs"] or not (is_slow or lag_seconds >= MIN_LOOP_LAG_SECONDS):
        return None
    share = wait_ms / (wait_ms + step_ms) if is_slow else min(1.0, lag_seconds)
    lag_ms = 1000 * lag_seconds
    says = f"Tokens wait {wait_ms:.0f} ms for the API server on their way out; its loop is {lag_ms:.0f} ms late."
    return Finding(
        "slow_frontend",
        share,
        says,
        {"output_wait_ms_mean": wait_ms, "step_ms_mean": step_ms, "event_loop_lag_ms_mean": lag_ms},
        ("--stream-interval above 1: fewer, larger chunks", "more cores for the API server"),
        (_LIMITS_USELESS.replace("what stands still does not use them", "the engine is not what is waited for"),),
    )


def _standing(facts: WindowFacts) -> Finding:
    stall = max(facts.standing, key=lambda each: each.noticed_at - each.stuck_at)
    seconds = max(facts.open_seconds, (stall.noticed_at - stall.stuck_at) / NS)
    where = (
        f"rank {stall.rank} ({stall.role}, pid {stall.pid})"
        if stall.rank >= 0
        else f"{stall.role} (pid {stall.pid})"
    )
    state = ", stopped by a signal" if stall.process_state == "T" else ""
    return Finding(
        "stalled_rank",
        min(1.0, seconds / max(facts.seconds, 1.0)),
        f"The engine stands still since {seconds:.1f} s: {where} is {stall.activity} in step {stall.step}{state}.",
        {"stalled_seconds": seconds, "rank": float(stall.rank), "pid": float(stall.pid), "role": stall.role},
        (_STALL_HELPS,),
        (_LIMITS_USELESS,),
    )


def _stood(facts: WindowFacts, share: float) -> Finding:
    lost_seconds = facts.sums["stalled_ns"] / NS
    worst = max(facts.stalls, key=lambda stall: stall.lost_ns, default=None)
    if worst is None:
        says = f"A step has not answered for {facts.open_seconds:.1f} s longer than its like took."
        evidence: dict[str, float | str] = {"open_seconds": facts.open_seconds}
    else:
        says = (
            f"{_rank_words(facts)} stood still for {lost_seconds:.1f} s of {facts.seconds:.0f} s: step "
            f"{worst.step} took {_seconds(worst):.2f} s where its like take {worst.expected_ns / NS:.2f} s."
        )
        evidence = {
            "stalled_seconds": lost_seconds,
            "rank": float(worst.rank),
            "worst_step": float(worst.step),
            "worst_step_seconds": _seconds(worst),
            "expected_seconds": worst.expected_ns / NS,
        }
    return Finding("stalled_rank", share, says, evidence, (_STALL_HELPS,), (_LIMITS_USELESS,))


def _lagging(facts: WindowFacts) -> Finding | None:
    lags = facts.rank_lags()
    rank = max(lags, key=lambda each: lags[each], default=-1)
    if rank < 0 or lags[rank] < MIN_LAG_SHARE:
        return None
    share = lags[rank] * facts.share("ranks_ns")
    says = f"Rank {rank} is behind: the other ranks wait for it {percent(lags[rank])} of the steps' time."
    evidence: dict[str, float | str] = {"rank": float(rank), "waited_for_share": lags[rank]}
    helps = (f"looking at rank {rank}'s device, core and memory (/inspect/processes)",)
    return Finding("stalled_rank", share, says, evidence, helps, (_LIMITS_USELESS,))


def _rank_words(facts: WindowFacts) -> str:
    lost = {name: number for name, number in facts.sums.items() if name.startswith(STALL) and number}
    ranks = sorted(lost, key=lambda name: -lost[name])
    number = int(ranks[0].removeprefix(STALL)) if ranks else -1
    return f"Rank {number}" if number >= 0 else "The worker"


def _seconds(stall: StalledStep) -> float:
    return (stall.lost_ns + stall.expected_ns) / NS
