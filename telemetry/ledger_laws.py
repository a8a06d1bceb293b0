"""The laws that one sequence's ledger must keep, checked when the core releases it and when it closes."""

from vllm_obs.telemetry.invariants import Invariants
from vllm_obs.telemetry.ledger import SequenceLedger


def check_released(ledger: SequenceLedger, laws: Invariants) -> None:
    """The core's own counts at the release against what its steps said, as long as its ledger grew with them."""
    released = ledger.released
    if released is None or ledger.is_partial or ledger.is_closed:
        return
    num_extra = released.num_output_tokens - ledger.num_output_tokens
    # One that failed on its own token has it, while its step does not count it among the used.
    if num_extra and not (num_extra == 1 and released.finish_reason == "error"):
        evidence = f"released with {released.num_output_tokens} tokens, steps answered {ledger.num_output_tokens}"
        laws.report("output_tokens", released.released_at, ledger.request_id, evidence)
    num_known = ledger.num_cached_tokens + ledger.num_resumed_cached_tokens + ledger.num_prefill_computed_tokens
    if ledger.first_token_at and num_known != ledger.submitted.num_prompt_tokens:
        evidence = (
            f"{ledger.num_cached_tokens} cached + {ledger.num_resumed_cached_tokens} cached when resumed + "
            f"{ledger.num_prefill_computed_tokens} computed of {ledger.submitted.num_prompt_tokens} prompt tokens"
        )
        laws.report("prompt_tokens", released.released_at, ledger.request_id, evidence)


def check_closed(ledger: SequenceLedger, laws: Invariants) -> None:
    """The stages of a final ledger; one that lost records is not judged."""
    ended = ledger.ended
    if ended is None or ledger.is_partial:
        return
    at = ledger.ended_at
    for interval in ledger.intervals:
        if interval.num_ns < 0:
            laws.report("no_negative_time", at, ledger.request_id, f"{interval}")
    problem = _gap(ledger)
    if problem:
        laws.report("stages", at, ledger.request_id, problem)
    released = ledger.released
    if released is not None and ended.num_output_tokens > released.num_output_tokens:
        evidence = f"ended with {ended.num_output_tokens} tokens, released with {released.num_output_tokens}"
        laws.report("used_tokens", at, ledger.request_id, evidence)


def _gap(ledger: SequenceLedger) -> str:
    """What keeps the stages from being a partition of its wall time; empty when they are one."""
    moment = ledger.submitted.received_at
    for interval in ledger.intervals:
        if interval.begun_at != moment:
            return f"{interval.stage} begins at {interval.begun_at}, the stage before it ended at {moment}"
        moment = interval.ended_at
    if moment != ledger.ended_at:
        return f"the last stage ends at {moment}, the sequence at {ledger.ended_at}"
    num_ns = sum(ledger.stage_ns().values())
    return "" if num_ns == ledger.latency_ns else f"stages sum to {num_ns} ns of {ledger.latency_ns}"
