"""Findings of waits for something other than capacity: grammars, remote KV, adapters, priority, a pause."""

from typing import NamedTuple

from vllm_obs.telemetry.verdict_capacity import BLOCKS, SEQS, TOKENS, Capacity, percent
from vllm_obs.telemetry.verdict_tally import LIMIT
from vllm_obs.telemetry.verdict_window import Finding, WindowFacts

MIN_WAIT_SHARE = 0.1


class _Wait(NamedTuple):
    """A limit that is told in the same words always."""

    finding: str
    limit: str
    says: str
    helps: str


_WAITS = (
    _Wait(
        "grammar_wait",
        "waiting_on_grammar",
        "The next request waits for its grammar to be compiled",
        "smaller schemas, or the same ones again: compiled ones are kept",
    ),
    _Wait(
        "remote_kv_wait",
        "waiting_on_remote_kv",
        "The next request waits for keys and values from elsewhere",
        "a faster way to the remote cache, or none: they can be computed here",
    ),
    _Wait("lora_slots", "lora_slots", "The next request waits for a place for its adapter", "more adapter slots"),
    _Wait(
        "priority",
        "priority",
        "Requests of low priority give way to others",
        "--scheduling-policy fcfs, or more KV blocks for both",
    ),
)


def waits(facts: WindowFacts) -> list[Finding]:
    """A finding for each of these waits that was long."""
    return [found for wait in _WAITS if (found := _wait(facts, wait)) is not None]


def paused(facts: WindowFacts) -> Finding | None:
    """The engine was paused by order while requests were there."""
    share = facts.share("paused_ns")
    if share < MIN_WAIT_SHARE or not (facts.num_waiting or facts.limit_share("paused")):
        return None
    says = f"The engine was paused by order {percent(share)} of the time; {facts.num_waiting} requests wait."
    evidence: dict[str, float | str] = {"paused_share": share, "num_waiting": float(facts.num_waiting)}
    return Finding("paused", share, says, evidence, ("resuming it",), ("any limit: nothing is scheduled",))


def _wait(facts: WindowFacts, wait: _Wait) -> Finding | None:
    share = facts.limit_share(wait.limit)
    if share < MIN_WAIT_SHARE:
        return None
    capacity = Capacity(facts, f"{LIMIT}{wait.limit}")
    return Finding(
        wait.finding,
        share,
        f"{wait.says} {percent(share)} of the time.",
        {f"{wait.limit}_share": share, **capacity.evidence()},
        (wait.helps,),
        capacity.useless(BLOCKS, SEQS, TOKENS),
    )
