"""What a request's spans say of it: its parameters, what it used, how long it took and how it ended."""

from collections.abc import Sequence

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import HttpRequestEnded
from vllm_obs.telemetry.span import Value
from vllm_obs.telemetry.span_names import OPERATIONS, PROVIDER, REPLY_IDS, Key

GOOD_ENDINGS = frozenset({"stop", "length", "repetition"})
SERVER_GONE = "server_gone"

_INFERENCE = ("prefill", "decode", "preempted", "recompute", "stalled")
_ERROR_TYPES = 64


def http_attributes(http: HttpRequestEnded | None) -> dict[Key, Value]:
    """What is known of the HTTP exchange."""
    if http is None:
        return {}
    operation = OPERATIONS.get(http.handler)
    values: dict[Key, Value] = {
        Key.METHOD: http.method,
        Key.ROUTE: http.handler,
        Key.STATUS: http.status,
        Key.REQUEST_BYTES: http.num_request_bytes,
        Key.RESPONSE_BYTES: http.num_response_bytes,
        Key.REQUEST_LABEL: http.external_id or None,
        Key.REQUEST_ID: http.http_id,
    }
    if operation is not None:
        reply_id = REPLY_IDS.get(http.handler, "") + http.http_id
        values |= {Key.OPERATION: operation, Key.PROVIDER: PROVIDER, Key.VLLM_REQUEST_ID: reply_id}
        values[Key.RESPONSE_ID] = reply_id if http.status == 200 else None
    return values


def request_attributes(ledgers: Sequence[SequenceLedger], http: HttpRequestEnded | None) -> dict[Key, Value]:
    """What is known of a request by its sequences; times are those of the one that ended last."""
    if not ledgers:
        return {}
    return _parameters(ledgers[0]) | _usage(ledgers) | _latencies(ledgers, http)


def _parameters(ledger: SequenceLedger) -> dict[Key, Value]:
    submitted = ledger.submitted
    return {
        Key.OPERATION: submitted.operation,
        Key.PROVIDER: PROVIDER,
        Key.REQUEST_MODEL: submitted.model,
        Key.RESPONSE_MODEL: submitted.model,
        Key.REQUEST_ID: submitted.request_id,
        Key.VLLM_REQUEST_ID: submitted.request_id,
        Key.REQUEST_LABEL: submitted.external_id or None,
        Key.NUM_CHOICES: submitted.num_sequences,
        Key.NUM_PROMPTS: submitted.num_prompts if submitted.num_prompts > 1 else None,
        Key.STREAM: submitted.is_streamed,
        Key.MAX_TOKENS: submitted.max_tokens,
        Key.TEMPERATURE: float(submitted.temperature),
        Key.TOP_P: float(submitted.top_p),
        Key.TOP_K: submitted.top_k if submitted.top_k > 0 else None,
        Key.PRIORITY: submitted.priority or None,
    }


def _usage(ledgers: Sequence[SequenceLedger]) -> dict[Key, Value]:
    """Tokens. The prompt that n sequences share is counted once, as the reply's usage counts it."""
    own_prompt = [ledger for ledger in ledgers if ledger.submitted.sequence_index % _n(ledger) == 0] or ledgers[:1]
    in_order = sorted(ledgers, key=lambda ledger: ledger.submitted.sequence_index)
    endings = [ledger.ended.finish_reason for ledger in in_order if ledger.ended is not None]
    return {
        Key.INPUT_TOKENS: sum(ledger.submitted.num_prompt_tokens for ledger in own_prompt),
        Key.OUTPUT_TOKENS: sum(_num_output_tokens(ledger) for ledger in ledgers),
        Key.CACHED_TOKENS: sum(ledger.num_cached_tokens for ledger in own_prompt),
        Key.NUM_SEQUENCES: len(ledgers),
        Key.NUM_PREEMPTIONS: sum(ledger.num_preemptions for ledger in ledgers) or None,
        Key.FINISH_REASONS: endings or None,
    }


def _n(ledger: SequenceLedger) -> int:
    return max(1, ledger.submitted.num_sequences)


def _num_output_tokens(ledger: SequenceLedger) -> int:
    return ledger.ended.num_output_tokens if ledger.ended is not None else ledger.num_output_tokens


def _latencies(ledgers: Sequence[SequenceLedger], http: HttpRequestEnded | None) -> dict[Key, Value]:
    last = max(ledgers, key=lambda ledger: ledger.ended_at)
    stages = last.stage_ns()
    received_at = last.submitted.received_at
    firsts = [ledger.first_token_at for ledger in ledgers if ledger.first_token_at]
    is_chunked = http is not None and last.submitted.is_streamed and http.first_byte_at > 0
    return {
        Key.E2E: last.latency_ns / 1e9,
        Key.FIRST_TOKEN: (min(firsts) - received_at) / 1e9 if firsts else None,
        Key.IN_QUEUE: stages["queue"] / 1e9,
        Key.IN_PREFILL: stages["prefill"] / 1e9,
        Key.IN_DECODE: stages["decode"] / 1e9,
        Key.IN_INFERENCE: sum(stages[stage] for stage in _INFERENCE) / 1e9,
        Key.FIRST_CHUNK: (http.first_byte_at - received_at) / 1e9 if http is not None and is_chunked else None,
    }


def error_of(ledgers: Sequence[SequenceLedger], http: HttpRequestEnded | None) -> tuple[str, str]:
    """The error's type (a word, or the HTTP status) and what to say; both empty where all went well.

    A client's own mistakes and departures count as errors here, though HTTP's conventions would leave the status
    open: what was asked for was not generated.
    """
    for ledger in ledgers:
        if ledger.is_abandoned:
            return SERVER_GONE, "the API server ended before the sequence did"
        # Of one whose ending was lost only the reply tells how that was.
        if ledger.ended is not None and ledger.ended.finish_reason not in GOOD_ENDINGS:
            return _ending(ledger.ended.finish_reason, ledger.ended.error, http)
    if http is None or http.status < 400:
        return (http.reason, http.reason) if http is not None and http.reason else ("", "")
    return http.reason or str(http.status), f"HTTP {http.status}{' ' if http.reason else ''}{http.reason}"


def _ending(finish_reason: str, error: str, http: HttpRequestEnded | None) -> tuple[str, str]:
    reason = (http.reason if http is not None else "") or (error if error.isidentifier() else "") or finish_reason
    return reason[:_ERROR_TYPES], f"{finish_reason}: {error}" if error else finish_reason
