"""The inspector's list of requests: which are in it, page by page."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple

from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_costs import NO_ACCOUNT
from vllm_obs.telemetry.http_metrics import is_counted
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.inspect_requests import latency_ns, order_of, request_row
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import HttpRequestEnded, RequestSubmitted
from vllm_obs.telemetry.request_names import trace_id_of
from vllm_obs.telemetry.run_state import RunState

MAX_MOMENT_DIGITS = 20
FAILED_STATUS = 400
NS = 1e9

StateFilter = Literal["live", "submitted", "waiting", "running", "preempted", "ended"]


class RequestFilter(NamedTuple):
    """Which sequences a list shows; all conditions have to hold. `cursor` is that of the page before.

    `text` is looked for in ids, labels and trace ids, whatever the case of its letters.
    """

    state: StateFilter | None
    min_seconds: float
    failed_only: bool
    limit: int
    cursor: str | None
    account: str | None = None
    text: str = ""


def request_list(
    state: RunState, now: int, wanted: RequestFilter, economics: Economics | None = None
) -> dict[str, Any]:
    """A page of rows, newest first; `cursor` asks for the next page and is None after the last.

    Of the `num_found` that fit, `num_before` are on the pages before; `min_seconds` is what they took at least.
    """
    below = _position(wanted.cursor)
    found = [ledger for ledger in _in_state(state, wanted.state) if _is_wanted(ledger, now, wanted)]
    left = found if below is None else [ledger for ledger in found if order_of(ledger) < below]
    page = heapq.nlargest(wanted.limit, left, key=order_of)
    refused = _refused(state, wanted) if _shows_refused(wanted) else []
    return {
        "requests": [request_row(state, ledger, now, economics) for ledger in page],
        "cursor": _cursor(page[-1]) if len(left) > len(page) else None,
        "num_found": len(found),
        "num_before": len(found) - len(left),
        "min_seconds": wanted.min_seconds,
        "refused": [ended._asdict() for ended in refused[: wanted.limit]],
        "num_refused": len(refused),
        "num_live": len(state.sequences),
        "num_ended": len(state.ended),
    }


def _in_state(state: RunState, wanted: StateFilter | None) -> Iterator[SequenceLedger]:
    live: Iterable[SequenceLedger] = state.sequences.values()
    if wanted is None:
        return iter(chain(live, state.ended))
    if wanted == "live":
        return (ledger for ledger in live if ledger.ended is None)
    if wanted == "ended":
        # One that has ended stays among the live until all its records have come.
        return (ledger for ledger in chain(live, state.ended) if ledger.state == "ended")
    return (ledger for ledger in live if ledger.state == wanted)


def _is_wanted(ledger: SequenceLedger, now: int, wanted: RequestFilter) -> bool:
    if wanted.failed_only and not _is_failed(ledger):
        return False
    if wanted.account is not None and (ledger.submitted.account or NO_ACCOUNT) != wanted.account:
        return False
    if wanted.text and not _has_text(ledger.submitted, wanted.text, ledger.request_id):
        return False
    return latency_ns(ledger, now) >= wanted.min_seconds * NS


def _has_text(known: RequestSubmitted | HttpRequestEnded, text: str, request_id: str = "") -> bool:
    names = (request_id, known.http_id, known.external_id, trace_id_of(known.trace_parent))
    wanted = text.casefold()
    return any(wanted in name.casefold() for name in names)


def _is_failed(ledger: SequenceLedger) -> bool:
    if ledger.http is not None and ledger.http.status >= FAILED_STATUS:
        return True
    return ledger.ended is not None and (ledger.ended.finish_reason == "error" or bool(ledger.ended.error))


def _shows_refused(wanted: RequestFilter) -> bool:
    """They have no account and no state but that they are over, and the first page has the newest."""
    return wanted.failed_only or (wanted.state in (None, "ended") and not wanted.cursor and wanted.account is None)


def _refused(state: RunState, wanted: RequestFilter) -> list[HttpRequestEnded]:
    """HTTP requests that were answered with an error and are no probes, newest first."""
    return [ended for ended in reversed(state.http) if _is_refused(ended, wanted)]


def _is_refused(ended: HttpRequestEnded, wanted: RequestFilter) -> bool:
    if ended.status < FAILED_STATUS or not is_counted(ended.handler):
        return False
    return _has_text(ended, wanted.text) and ended.ended_at - ended.received_at >= wanted.min_seconds * NS


def _cursor(ledger: SequenceLedger) -> str:
    received_at, request_id = order_of(ledger)
    return f"{received_at}:{request_id}"


def _position(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    received_at, colon, request_id = cursor.partition(":")
    is_moment = received_at.isascii() and received_at.isdecimal() and len(received_at) <= MAX_MOMENT_DIGITS
    if not colon or not is_moment:
        raise InspectError(f"{cursor[:64]!r} is not a cursor of this list", 400)
    return int(received_at), request_id
