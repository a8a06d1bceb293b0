"""The names that a request goes by: our ids, the client's label, the ids that replies carry, and its trace."""

from vllm_obs.telemetry.records import HttpRequestEnded, RequestSubmitted
from vllm_obs.telemetry.span_names import REPLY_IDS

REPLY_PREFIXES = (*REPLY_IDS.values(), "score-", "rerank-")
"""What a reply's id begins with; the client's label, or our id of the HTTP request, follows."""


def names_of(asked: str) -> tuple[str, ...]:
    """What may be meant, the likeliest first: the name as it is, else what follows a reply's prefix.

    No prefix begins with another, so there are two at most.
    """
    rest = [asked.removeprefix(prefix) for prefix in REPLY_PREFIXES if asked.startswith(prefix)]
    return tuple(name for name in (asked, *rest) if name)


def is_sequence_of(submitted: RequestSubmitted, name: str) -> bool:
    """Whether a sequence has this name: its HTTP request's id, label or trace, or what its own id begins with."""
    if name in (submitted.http_id, submitted.external_id, trace_id_of(submitted.trace_parent)):
        return True
    request_id = submitted.request_id
    return request_id.startswith(name) and request_id.rpartition("-")[0] == name


def is_http_of(ended: HttpRequestEnded, name: str) -> bool:
    """Whether an HTTP request has this name."""
    return name in (ended.http_id, ended.external_id, trace_id_of(ended.trace_parent))


def trace_id_of(trace_parent: str) -> str:
    """The trace in a W3C traceparent, empty where nothing is traced."""
    return trace_parent[3:35]
