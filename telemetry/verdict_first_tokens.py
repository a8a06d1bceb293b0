"""First tokens that come late although no limit held for long: in a short burst, or behind long prompts."""

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.verdict_window import NS, Finding, WindowFacts

LATE_SECONDS = 2.0
"""Who waits so long for a first token notices it, whatever the model."""
MIN_LATE_SHARE = 0.05
"""So that it is told of as soon as the p95 of the time is late."""
WAIT = "late_first_wait/"
"""Sums by wait reason (ns) have names that begin so."""


def first_token_sums(ledger: SequenceLedger, sampled_at: int) -> dict[str, float]:
    """What one first token adds to the sums of its second; times in ns, from the request's first byte on."""
    taken_ns = max(0, sampled_at - ledger.submitted.received_at)
    if taken_ns < LATE_SECONDS * NS:
        return {"first_tokens": 1}
    sums: dict[str, float] = {"first_tokens": 1, "late_first_tokens": 1, "late_first_ns": taken_ns}
    for reason, num_ns in ledger.waits.items():
        sums[WAIT + reason] = num_ns
    return sums


def late_first_tokens(facts: WindowFacts) -> Finding | None:
    """More than a few first tokens were late; for where nothing else is found that says why."""
    num_late, num_all = facts.sums["late_first_tokens"], facts.sums["first_tokens"]
    share = num_late / num_all if num_all else 0.0
    if not num_late or share < MIN_LATE_SHARE:
        return None
    mean = facts.ratio("late_first_ns", "late_first_tokens") / NS
    by_reason = {name: ns for name, ns in facts.sums.items() if name.startswith(WAIT) and ns > 0}
    waited = sum(by_reason.values()) / num_late / NS
    most = max(by_reason, key=lambda name: by_reason[name], default="").removeprefix(WAIT)
    says = (
        f"First tokens come late: {num_late:.0f} of {num_all:.0f} took over {LATE_SECONDS:g} s, {mean:.1f} s on "
        f"average and {waited:.1f} s of it in the queue{f' (mostly {most})' if most else ''}."
    )
    evidence: dict[str, float | str] = {
        "late_share": share,
        "late_first_token_seconds_mean": mean,
        "late_queue_seconds_mean": waited,
    }
    if most:
        evidence["most_waited_for"] = most
    if waited > mean / 2:
        helps = ("fewer requests at once, or another engine: they wait behind those that came before",)
    else:
        helps = ("shorter prompts, or ones that begin alike (prefix caching): the prompts take the time",)
    return Finding("late_first_tokens", share, says, evidence, helps, ())
