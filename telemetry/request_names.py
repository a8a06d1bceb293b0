"""The names that a request goes by: our ids, the client's label, and the ids that replies carry."""

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
    """Whether a sequence has this name: an HTTP request's id or label, or what its sequences' ids begin with."""
    if name in (submitted.http_id, submitted.external_id):
        return True
    request_id = submitted.request_id
    return request_id.startswith(name) and request_id.rpartition("-")[0] == name


def is_http_of(ended: HttpRequestEnded, name: str) -> bool:
    """Whether an HTTP request has this name."""
    return name in (ended.http_id, ended.external_id)
