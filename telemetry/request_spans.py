"""RequestSpans: an HTTP request's SERVER span and its children, made when the last fact about it has come."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import HttpRequestEnded, RequestSubmitted
from vllm_obs.telemetry.request_attributes import error_of, http_attributes, request_attributes
from vllm_obs.telemetry.span import Process, Span, SpanKind, Value, recorded_parent
from vllm_obs.telemetry.span_names import OPERATIONS, SpanNames
from vllm_obs.telemetry.stage_spans import StageSpans
from vllm_obs.telemetry.step_segments import Segment
from vllm_obs.telemetry.trace_ids import TraceParent, span_id
from vllm_obs.telemetry.view import Source

MAX_OPEN = 10_000
LINGER_NS = 12 * 10**9
"""So long a request that has ended waits for the ledgers of its sequences."""

MAX_DELIVERY_NS = 300 * 10**9
"""So long sequences that have ended wait for their reply to be delivered."""

_LOOK_EVERY_NS = 10**9


@dataclass
class Sequence:
    """One closed sequence of a request, and the segments its steps were cut into."""

    ledger: SequenceLedger
    segments: list[Segment]
    process: Process
    """The API server that it belongs to."""


@dataclass
class _OpenRequest:
    parent: TraceParent
    process: Process
    num_submitted: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    http: HttpRequestEnded | None = None

    @property
    def is_whole(self) -> bool:
        """Whether no further fact about it can come."""
        is_ended = self.http is not None or any(_has_no_reply(sequence.ledger) for sequence in self.sequences)
        return is_ended and len(self.sequences) >= self.num_submitted

    def is_late(self, now: int) -> bool:
        """Whether what is missing will not come any more."""
        if self.http is not None:
            return self.http.ended_at + LINGER_NS < now
        ends = [_end_of(sequence.ledger) for sequence in self.sequences]
        return bool(ends) and max(ends) + MAX_DELIVERY_NS < now


class RequestTree(NamedTuple):
    """The spans of one request, parent first; `stages` are those below the requests and sequences themselves."""

    requests: list[Span]
    stages: list[Span]


class RequestSpans:
    """Collects a request's sequences until it is whole, then makes its spans. Only sampled requests are kept.

    Every method gives the trees that became whole by it. Not more than `MAX_OPEN` requests wait; the oldest goes
    out as it is.
    """

    def __init__(self, run: str, names: SpanNames, engines: Mapping[str, Process]) -> None:
        self._run = run
        self._names = names
        self._stages = StageSpans(run, engines)
        self._open: OrderedDict[str, _OpenRequest] = OrderedDict()
        self._looked_at = 0

    def __len__(self) -> int:
        return len(self._open)

    def submitted(self, source: Source, submitted: RequestSubmitted) -> Iterator[RequestTree]:
        """One more sequence of the request is to be waited for."""
        parent = recorded_parent(submitted.trace_parent)
        if parent is not None and parent.is_sampled:
            request = self._request(_key(submitted), parent, source)
            request.num_submitted += 1
            yield from self._over_the_limit()

    def resumed(self, source: Source, ledger: SequenceLedger) -> Iterator[RequestTree]:
        """A sequence that an Observer before this one knew is to be waited for."""
        yield from self.submitted(source, ledger.submitted)
        if ledger.http is not None:
            yield from self.http_ended(source, ledger.http)

    def sequence_closed(self, ledger: SequenceLedger, segments: list[Segment]) -> Iterator[RequestTree]:
        """A sequence is final."""
        key = _key(ledger.submitted)
        request = self._open.get(key)
        if request is not None:
            request.sequences.append(Sequence(ledger, segments, request.process))
            if request.is_whole:
                yield self._tree(key, self._open.pop(key))

    def http_ended(self, source: Source, http: HttpRequestEnded) -> Iterator[RequestTree]:
        """The HTTP exchange is over; where it was rejected this is all of it.

        One that was not about generating (a scrape, a probe) is a span only where its caller traces it.
        """
        parent = recorded_parent(http.trace_parent)
        is_wanted = http.http_id in self._open or http.handler in OPERATIONS
        if parent is None or not parent.is_sampled or not (is_wanted or parent.span_id):
            return
        request = self._request(http.http_id, parent, source)
        request.http = http
        if request.is_whole:
            yield self._tree(http.http_id, self._open.pop(http.http_id))
        yield from self.overdue(http.ended_at)
        yield from self._over_the_limit()

    def overdue(self, now: int) -> Iterator[RequestTree]:
        """Requests that ended long ago, with as many sequences as have come."""
        if now < self._looked_at + _LOOK_EVERY_NS:
            return
        self._looked_at = now
        late = [key for key, request in self._open.items() if request.is_late(now)]
        for key in late:
            yield self._tree(key, self._open.pop(key))

    def _request(self, key: str, parent: TraceParent, source: Source) -> _OpenRequest:
        request = self._open.get(key)
        if request is None:
            request = self._open[key] = _OpenRequest(parent, Process(source.role, source.pid))
        return request

    def _over_the_limit(self) -> Iterator[RequestTree]:
        while len(self._open) > MAX_OPEN:
            key, request = self._open.popitem(last=False)
            if request.http is not None or request.sequences:
                yield self._tree(key, request)

    def _tree(self, key: str, request: _OpenRequest) -> RequestTree:
        root = self._root(key, request)
        requests = [root]
        stages: list[Span] = []
        sequences = sorted(request.sequences, key=lambda sequence: sequence.ledger.request_id)
        for sequence in sequences:
            above = root
            if len(sequences) > 1:
                above = self._sequence_span(root, sequence)
                requests.append(above)
            stages += self._stages.of(above, sequence.ledger, sequence.segments)
        return RequestTree(requests, stages)

    def _root(self, key: str, request: _OpenRequest) -> Span:
        ledgers = [sequence.ledger for sequence in request.sequences]
        http = request.http or next((ledger.http for ledger in ledgers if ledger.http is not None), None)
        values = request_attributes(ledgers, http) | http_attributes(http)
        attributes: dict[str, Value] = self._names.attributes(values)
        error_type, error = error_of(ledgers, http)
        attributes |= self._names.attributes({span_names.Key.ERROR_TYPE: error_type or None})
        begun_at = http.received_at if http is not None else ledgers[0].submitted.received_at
        ended_at = http.ended_at if http is not None else max(_end_of(ledger) for ledger in ledgers)
        return Span(
            trace_id=request.parent.trace_id,
            span_id=span_id(self._run, "http", key),
            parent_id=request.parent.span_id,
            name=_name(ledgers, http),
            begun_at=begun_at,
            ended_at=max(ended_at, *(_end_of(ledger) for ledger in ledgers), begun_at),
            process=request.process,
            attributes=attributes,
            kind=SpanKind.SERVER,
            error=error,
            has_remote_parent=bool(request.parent.span_id),
        )

    def _sequence_span(self, root: Span, sequence: Sequence) -> Span:
        """The span of one sequence among several."""
        ledger = sequence.ledger
        error_type, error = error_of([ledger], None)
        own = self._names.attributes(request_attributes([ledger], None))
        own |= {span_names.SEQUENCE_INDEX: ledger.submitted.sequence_index, "error.type": error_type or None}
        return Span(
            trace_id=root.trace_id,
            span_id=span_id(self._run, "sequence", ledger.request_id),
            parent_id=root.span_id,
            name=f"sequence {ledger.submitted.sequence_index}",
            begun_at=ledger.submitted.received_at,
            ended_at=_end_of(ledger),
            process=root.process,
            attributes=own,
            error=error,
        )


def _key(submitted: RequestSubmitted) -> str:
    # Offline there is no HTTP request: each sequence is one of its own.
    return submitted.http_id or submitted.request_id


def _has_no_reply(ledger: SequenceLedger) -> bool:
    """Whether no HTTP exchange will end: it has none, or its API server is gone."""
    return not ledger.submitted.http_id or ledger.ended is None


def _end_of(ledger: SequenceLedger) -> int:
    return ledger.ended_at or max(ledger.since, ledger.submitted.submitted_at)


def _name(ledgers: list[SequenceLedger], http: HttpRequestEnded | None) -> str:
    """`chat MODEL` as the conventions want it; where no model is known the operation or the route."""
    if ledgers:
        return f"{ledgers[0].submitted.operation} {ledgers[0].submitted.model}"
    assert http is not None
    return OPERATIONS.get(http.handler) or f"{http.method} {http.handler}"
