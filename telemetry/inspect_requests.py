"""The inspector's view of a request: its row in a list, and everything about it."""

from collections import Counter
from itertools import chain
from typing import Any

from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_costs import NO_ACCOUNT
from vllm_obs.telemetry.economics_view import cost_fields, cost_sentences
from vllm_obs.telemetry.explain import Ahead, explain
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import HttpRequestEnded
from vllm_obs.telemetry.request_names import trace_id_of
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.stages import ns_by_reason, ns_by_stage

MAX_DUPLICATES = 16
MAX_COMPANIONS = 16
COMPANY_STEPS = 512
NS = 1e9


def request_row(
    state: RunState, ledger: SequenceLedger, now: int, economics: Economics | None = None
) -> dict[str, Any]:
    """One sequence in a list. Live ones are as of `now`; what they cost is None where nobody counts it."""
    submitted, ended = ledger.submitted, ledger.ended
    reason, since = _wait_of(state, ledger)
    last_token_age = (now - ledger.last_token_at) / NS if ledger.last_token_at else None
    is_over = ended is not None or ledger.is_closed
    return {
        "request_id": submitted.request_id,
        "http_id": submitted.http_id,
        "external_id": submitted.external_id,
        "sequence_index": submitted.sequence_index,
        "num_sequences": submitted.num_sequences,
        "client_index": submitted.client_index,
        "engine": ledger.engine,
        "account": submitted.account or NO_ACCOUNT,
        "model": submitted.model,
        "operation": submitted.operation,
        "is_streamed": submitted.is_streamed,
        "state": ledger.state,
        "stage": "" if ledger.is_closed else ledger.stage,
        "reason": "" if ledger.is_closed else reason,
        "received_at": submitted.received_at,
        "latency_ns": latency_ns(ledger, now),
        "in_stage_seconds": None if is_over else max(0, now - since) / NS,
        "ttft_seconds": _ttft_seconds(ledger),
        "num_prompt_tokens": submitted.num_prompt_tokens,
        "num_output_tokens": ended.num_output_tokens if ended else ledger.num_output_tokens,
        "num_cached_tokens": ledger.num_cached_tokens,
        "num_preemptions": ledger.num_preemptions,
        "num_recomputed_tokens": ledger.num_recomputed_tokens,
        **cost_fields(economics, ledger.request_id),
        "last_token_age_seconds": None if ended else last_token_age,
        "finish_reason": ended.finish_reason if ended else "",
        "error": ended.error if ended else "",
        "status": ledger.http.status if ledger.http else None,
        "is_partial": ledger.is_partial,
    }


def _wait_of(state: RunState, ledger: SequenceLedger) -> tuple[str, int]:
    """Why it is in its stage, if it waits, and since when. The line knows, whatever its reasons were meanwhile."""
    engine = state.engines.get(ledger.engine)
    waiter = engine.builder.roster.line.get(ledger.request_id) if engine is not None else None
    if engine is None or waiter is None:
        return ledger.reason, ledger.waiting_since
    return engine.builder.roster.line.reason_of(ledger), waiter.since


def order_of(ledger: SequenceLedger) -> tuple[int, str]:
    """What requests are sorted by."""
    return ledger.submitted.received_at, ledger.request_id


def one_request(state: RunState, now: int, name: str, economics: Economics | None = None) -> dict[str, Any]:
    """All sequences known by that id or label, newest first. Raises InspectError (404) where there is none."""
    ledgers = sorted(state.find(name), key=order_of, reverse=True)
    http = state.find_http(name) or _http_of(ledgers[:MAX_DUPLICATES])
    if not ledgers and not http:
        raise InspectError(f"no request of the last minutes has the id or label {name[:64]!r}", 404)
    whole = {ledger.submitted.http_id or ledger.request_id for ledger in ledgers} | {
        ended.http_id for ended in http
    }
    shown = ledgers[:MAX_DUPLICATES]
    return {
        "name": name,
        "num_requests": len(whole),
        "num_sequences": len(ledgers),
        "num_left_out": len(ledgers) - len(shown),
        "sequences": [one_sequence(state, ledger, now, economics) for ledger in shown],
        "http": [ended._asdict() for ended in http[-MAX_DUPLICATES:]],
    }


def one_sequence(
    state: RunState, ledger: SequenceLedger, now: int, economics: Economics | None = None
) -> dict[str, Any]:
    """Everything about one sequence: its row, stages, waits, steps, and where its time went in words."""
    intervals = state.intervals(ledger, now)
    ahead = ahead_of(state, ledger)
    costs = cost_sentences(economics, ledger.request_id)
    return request_row(state, ledger, now, economics) | {
        "explanation": explain(ledger, intervals, ahead, state.steps_of(ledger), costs),
        "ahead": ahead._asdict(),
        "stage_ns": ns_by_stage(intervals),
        "waits": ns_by_reason(intervals),
        "intervals": {
            "stages": [interval.stage for interval in intervals],
            "begun_at": [interval.begun_at for interval in intervals],
            "ended_at": [interval.ended_at for interval in intervals],
            "reasons": [interval.reason for interval in intervals],
        },
        "steps": _step_columns(ledger),
        "first_step": ledger.first_step,
        "last_step": ledger.last_step,
        "num_steps": ledger.num_steps,
        "companions": companions_of(state, ledger),
        "peak_company": ledger.peak_company,
        "mean_company": ledger.mean_company,
        "num_prefill_computed_tokens": ledger.num_prefill_computed_tokens,
        "first_token_at": ledger.first_token_at,
        "last_token_at": ledger.last_token_at,
        "trace_id": trace_id_of(ledger.submitted.trace_parent),
        "submitted": ledger.submitted._asdict(),
        "ended": ledger.ended._asdict() if ledger.ended else None,
        "released": ledger.released._asdict() if ledger.released else None,
    }


def ahead_of(state: RunState, ledger: SequenceLedger) -> Ahead:
    """Who was running, and who was waiting, in its engine when it came; of those that are still known."""
    num_running = num_waiting = 0
    taken_at = ledger.taken_at
    for other in chain(state.sequences.values(), state.ended):
        if other is ledger or other.engine != ledger.engine or not 0 < other.taken_at < taken_at:
            continue
        if 0 < _left_engine_at(other) <= taken_at:
            continue
        is_running = 0 < _admitted_at(other) <= taken_at
        num_running += is_running
        num_waiting += not is_running
    return Ahead(num_running, num_waiting)


def companions_of(state: RunState, ledger: SequenceLedger) -> dict[str, int]:
    """The sequences that shared most of its last COMPANY_STEPS steps: id → number of them."""
    engine = state.engines.get(ledger.engine)
    shared: Counter[str] = Counter()
    for step, _, _ in ledger.steps[-COMPANY_STEPS:]:
        facts = engine.steps.get(step) if engine is not None else None
        if facts is not None:
            shared.update(facts.planned.request_ids)
    shared.pop(ledger.request_id, None)
    return dict(shared.most_common(MAX_COMPANIONS))


def _admitted_at(ledger: SequenceLedger) -> int:
    """When it was first scheduled, 0 if it never was."""
    if not ledger.num_steps:
        return 0
    queued = [interval.ended_at for interval in ledger.intervals if interval.stage == "queue"]
    return queued[-1] if queued else ledger.taken_at


def _left_engine_at(ledger: SequenceLedger) -> int:
    """When it gave its blocks back, 0 while it has them."""
    if ledger.released is not None:
        return ledger.released.released_at
    return ledger.ended_at if ledger.is_closed else 0


def _step_columns(ledger: SequenceLedger) -> dict[str, list[int]]:
    steps = ledger.steps
    return {
        "step": [step for step, _, _ in steps],
        "num_scheduled_tokens": [num_tokens for _, num_tokens, _ in steps],
        "num_computed_tokens": [num_computed for _, _, num_computed in steps],
    }


def _http_of(ledgers: list[SequenceLedger]) -> list[HttpRequestEnded]:
    """The HTTP requests that these sequences came in, each once."""
    known = {ledger.http.http_id: ledger.http for ledger in ledgers if ledger.http is not None}
    return list(known.values())


def _ttft_seconds(ledger: SequenceLedger) -> float | None:
    """From the first byte received to the first token sampled; None before."""
    if not ledger.first_token_at:
        return None
    return max(0, ledger.first_token_at - ledger.submitted.received_at) / NS


def latency_ns(ledger: SequenceLedger, now: int) -> int:
    """From its first byte to its end, or to `now` while it lives."""
    return ledger.latency_ns if ledger.is_closed else max(ledger.latency_ns, now - ledger.submitted.received_at)
