"""Findings of slowness: what stands still or lags, and workers and front ends that take longer than they need."""

from vllm_obs.telemetry.explain_words import count
from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.verdict_capacity import percent
from vllm_obs.telemetry.verdict_tally import STALL, StalledStep
from vllm_obs.telemetry.verdict_window import NS, Finding, WindowFacts

MIN_STALL_SHARE = 0.03
"""Two seconds of a minute; only steps that took a second too long are counted at all."""
MIN_LAG_SHARE = 0.25
MIN_SLOW_RATIO = 3.0
MIN_SLOW_STEPS = 50
MIN_SLOW_SHARE = 0.2
MIN_OUTPUT_WAIT_MS = 50.0
MIN_OUTPUT_WAIT_STEPS = 2.0
MIN_LOOP_LAG_SECONDS = 0.25
MIN_LATE_SECONDS = 1.5
"""Tokens wait, or the loop is late, for so much of the window at least: less is a hiccup of a busy machine."""
STOPPED = "T"
"""The kernel's letter for a process that was stopped by a signal."""
_STACKS_HELP = "the stacks of the process (POST /inspect/stacks) and what it does (/inspect/processes)"
_INCIDENT_HELP = "`vllm-obs incident show`: the stacks, and what came before"
_SLOW_HELP = "looking at what else used this machine then, its clock rates and its memory (`vllm-obs profile`)"
_SCHEDULING_USELESS = "another scheduling limit: the steps themselves are slow"
_LIMITS_USELESS = (
    "larger limits (--max-num-seqs, --max-num-batched-tokens, KV blocks): what stands still does not use them"
)


def stalled_rank(facts: WindowFacts) -> Finding | None:
    """A rank, or the engine's process, stands still, has stood still, or is always the last."""
    if facts.standing:
        return _standing(facts)
    share = max(facts.share("stalled_ns"), min(1.0, facts.open_seconds / max(facts.seconds, 1.0)))
    lagging = _lagging(facts)
    if share >= MIN_STALL_SHARE:
        return _stood(facts, share)._replace(is_past=not facts.open_seconds and lagging is None)
    return lagging


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
        (_SCHEDULING_USELESS,),
    )


def slow_frontend(facts: WindowFacts) -> Finding | None:
    """Tokens that are ready wait for the API server."""
    wait_ms = facts.mean_ms("outputs_ns", "outputs")
    step_ms = facts.mean_ms("used_ns", "steps")
    lag_seconds, all_lag_seconds = facts.latest_loop()
    is_slow = wait_ms >= max(MIN_OUTPUT_WAIT_MS, MIN_OUTPUT_WAIT_STEPS * step_ms)
    is_slow = is_slow and facts.sums["late_ns"] >= MIN_LATE_SECONDS * NS
    is_late = lag_seconds >= MIN_LOOP_LAG_SECONDS and all_lag_seconds >= MIN_LATE_SECONDS
    if not facts.sums["outputs"] or not (is_slow or is_late):
        return None
    late_ms = facts.mean_ms("late_outputs_ns", "late_outputs") or wait_ms
    lag_ms = 1000 * lag_seconds
    return Finding(
        "slow_frontend",
        facts.share("late_ns") if is_slow else min(1.0, lag_seconds),
        f"Tokens wait {late_ms:.0f} ms for the API server on their way out; its loop is {lag_ms:.0f} ms late.",
        {
            "late_output_wait_ms_mean": late_ms,
            "output_wait_ms_mean": wait_ms,
            "step_ms_mean": step_ms,
            "event_loop_lag_ms_mean": lag_ms,
        },
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
    is_stopped = stall.process_state == STOPPED
    verb, state = ("was", ", and is stopped by a signal") if is_stopped else ("is", "")
    return Finding(
        "stalled_rank",
        min(1.0, seconds / max(facts.seconds, 1.0)),
        f"The engine has stood still for {seconds:.1f} s: {where} {verb} {stall.activity} in step "
        f"{stall.step}{state}.",
        {"stalled_seconds": seconds, "rank": float(stall.rank), "pid": float(stall.pid), "role": stall.role},
        _go_on_helps(facts, stall.pid) if is_stopped else (_STACKS_HELP, _INCIDENT_HELP),
        (_LIMITS_USELESS,),
        is_severe=True,
    )


def _go_on_helps(facts: WindowFacts, pid: int) -> tuple[str, ...]:
    num_open = facts.num_running + facts.num_waiting
    loses = f"; a restart loses the {count(num_open, 'open request')}" if num_open else ""
    return f"`kill -CONT {pid}`, which lets it go on{loses}", _INCIDENT_HELP


def _stood(facts: WindowFacts, share: float) -> Finding:
    """What took far too long: still does, or did; only what the watchdog saw has an incident."""
    lost_seconds = facts.sums["stalled_ns"] / NS
    worst = max(facts.stalls, key=lambda stall: stall.lost_ns, default=None)
    if worst is None or facts.open_seconds > lost_seconds:
        says = f"A step has not answered for {facts.open_seconds:.1f} s longer than its like took."
        evidence: dict[str, float | str] = {"open_seconds": facts.open_seconds}
        return Finding("stalled_rank", share, says, evidence, (_STACKS_HELP,), (_LIMITS_USELESS,))
    of_window = f" for {lost_seconds:.1f} s of {facts.seconds:.0f} s"
    if facts.noticed:
        did, helps, useless = f"stood still{of_window}", _INCIDENT_HELP, _LIMITS_USELESS
    else:
        did = f"was slow{of_window}" if len(facts.stalls) > 1 else "was slow"
        helps, useless = _SLOW_HELP, _SCHEDULING_USELESS
    seen = next((each for each in facts.noticed if _overlaps(each, worst)), None)
    who = _rank_words(facts) if seen is None else f"Rank {seen.rank}"
    says = (
        f"{who} {did}: step {worst.step} took {_seconds(worst):.2f} s, "
        f"its like take {worst.expected_ns / NS:.2f} s."
    )
    evidence = {
        "stalled_seconds": lost_seconds,
        "rank": float(worst.rank if seen is None else seen.rank),
        "worst_step": float(worst.step),
        "worst_step_seconds": _seconds(worst),
        "expected_seconds": worst.expected_ns / NS,
    }
    # A slow step is as bad as its share says; what the watchdog has seen always is.
    return Finding("stalled_rank", share, says, evidence, (helps,), (useless,), is_severe=bool(facts.noticed))


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


def _overlaps(seen: StallBegun, step: StalledStep) -> bool:
    """Whether a rank was seen to hold up that step; by their own times all ranks took as long."""
    return seen.rank >= 0 and seen.stuck_at < step.ended_at and step.begun_at < seen.noticed_at


def _rank_words(facts: WindowFacts) -> str:
    lost = {name: number for name, number in facts.sums.items() if name.startswith(STALL) and number}
    ranks = sorted(lost, key=lambda name: -lost[name])
    number = int(ranks[0].removeprefix(STALL)) if ranks else -1
    return f"Rank {number}" if number >= 0 else "The worker"


def _seconds(stall: StalledStep) -> float:
    return (stall.lost_ns + stall.expected_ns) / NS
