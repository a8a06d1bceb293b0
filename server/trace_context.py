"""Which trace a request belongs to, decided once, when it arrives."""

from collections.abc import Iterable
from typing import NamedTuple

from vllm_obs.telemetry.trace_ids import NO_SPAN, TraceParent, new_trace_id, parse_traceparent, span_id

Headers = list[tuple[bytes, bytes]]

HTTP_SPAN = "http"
_LOW_BITS = 64


class RequestTrace(NamedTuple):
    """A request's trace with its parent in it, and the request's own span."""

    parent: TraceParent
    span_id: int

    @property
    def recorded(self) -> str:
        """What facts carry: the parent as a W3C traceparent, empty where nothing is to be traced."""
        return str(self.parent) if self.parent.is_sampled else ""

    def reply_headers(self) -> Headers:
        """What tells the client which trace its request is in."""
        own = self.parent._replace(span_id=self.span_id)
        return [(b"x-trace-id", own.trace_hex.encode()), (b"traceparent", str(own).encode())]


class Tracing:
    """Traces a caller's request where the caller does, and others at `sample_rate` (0 to 1).

    Where the parent is not respected the rate decides for callers' traces too, which stay theirs. The rate may be
    changed, and `is_on` taken away: then nobody is traced, and callers are told so.
    """

    def __init__(self, run: str, sample_rate: float, is_parent_respected: bool = True) -> None:
        self.sample_rate = sample_rate
        self.is_on = True
        self._run = run
        self._is_parent_respected = is_parent_respected

    def trace_of(self, http_id: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """The trace of an arriving request."""
        caller = _caller_in(headers)
        parent = caller or TraceParent(new_trace_id(), NO_SPAN, False)
        decided = parent.is_sampled if caller and self._is_parent_respected else self._samples(parent.trace_id)
        parent = parent._replace(is_sampled=decided and self.is_on)
        return RequestTrace(parent, span_id(self._run, HTTP_SPAN, http_id))

    def _samples(self, trace_id: int) -> bool:
        # The decision depends on the id alone, so that whoever knows the rate decides alike.
        share = (trace_id & ((1 << _LOW_BITS) - 1)) / (1 << _LOW_BITS)
        return share < self.sample_rate


def _caller_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceParent | None:
    """The caller's trace parent; None without the header, with two, and with one that is malformed."""
    found = [value for name, value in headers if name == b"traceparent"]
    return parse_traceparent(found[0]) if len(found) == 1 else None
