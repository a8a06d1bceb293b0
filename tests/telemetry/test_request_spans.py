"""A request's spans: a SERVER span below the caller's, a child for every stage, whatever its ending was."""

from typing import Any

import pytest
from span_facts import (
    API,
    CALLER,
    NO_PARENT,
    NOT_SAMPLED,
    STAGES,
    TRACE,
    SpanList,
    ended,
    http_ended,
    intervals,
    ledger,
    submitted,
)

from vllm_obs.telemetry import request_spans
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.request_spans import LINGER_NS, RequestSpans
from vllm_obs.telemetry.span import NO_ATTRIBUTES, Process, Span, SpanKind, recorded_parent
from vllm_obs.telemetry.span_names import CURRENT_ONLY, SpanNames
from vllm_obs.telemetry.spans import REQUESTS, SpansView
from vllm_obs.telemetry.spans import STAGES as STAGE_LEVEL
from vllm_obs.telemetry.trace_ids import TraceParent, span_id

RUN = "run-1"
SERVER_ID = span_id(RUN, "http", "r")


def view_and_spans(**options: Any) -> tuple[SpansView, SpanList]:
    sink = SpanList()
    return SpansView(RUN, sink, **options), sink


def served(*ledgers: SequenceLedger, http: Any = None, **options: Any) -> SpanList:
    """The spans of one request whose sequences are these."""
    view, sink = view_and_spans(**options)
    for closed in ledgers:
        view.record(API, closed.submitted)
    http = http or http_ended()
    view.record(API, http)
    for closed in ledgers:
        view.sequence_closed(closed)
    return sink


def test_the_server_span_is_the_callers_child() -> None:
    server = served(ledger()).spans[-1]
    assert server._replace(attributes=NO_ATTRIBUTES) == Span(
        trace_id=TRACE,
        span_id=SERVER_ID,
        parent_id=CALLER,
        name="chat tiny",
        begun_at=1000,
        ended_at=6000,
        process=Process("APIServer_0", 10),
        kind=SpanKind.SERVER,
        has_remote_parent=True,
    )


def test_a_request_without_caller_is_the_root_of_its_trace() -> None:
    server = served(ledger(submitted=submitted(trace_parent=NO_PARENT)), http=http_ended(trace_parent=NO_PARENT))
    assert (server.spans[-1].parent_id, server.spans[-1].has_remote_parent) == (0, False)


def test_attributes_are_written_under_both_names() -> None:
    assert served(ledger()).spans[-1].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm_obs",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-r",
        "vllm_obs.request.id": "r",
        "gen_ai.request.id": "chatcmpl-r",
        "vllm_obs.request.label": "label",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.n": 1,
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 2100 / 1e9,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cached_tokens": 4,
        "vllm_obs.request.num_sequences": 1,
        "gen_ai.usage.num_sequences": 1,
        "vllm_obs.latency.e2e": 5000 / 1e9,
        "gen_ai.latency.e2e": 5000 / 1e9,
        "vllm_obs.latency.time_to_first_token": 2000 / 1e9,
        "gen_ai.latency.time_to_first_token": 2000 / 1e9,
        "vllm_obs.latency.queue": 500 / 1e9,
        "gen_ai.latency.time_in_queue": 500 / 1e9,
        "vllm_obs.latency.prefill": 1000 / 1e9,
        "gen_ai.latency.time_in_model_prefill": 1000 / 1e9,
        "vllm_obs.latency.decode": 2000 / 1e9,
        "gen_ai.latency.time_in_model_decode": 2000 / 1e9,
        "vllm_obs.latency.inference": 3000 / 1e9,
        "gen_ai.latency.time_in_model_inference": 3000 / 1e9,
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.request.body.size": 100,
        "http.response.body.size": 900,
    }


def test_opting_in_leaves_the_old_names_out() -> None:
    both = served(ledger()).spans[-1].attributes
    current = served(ledger(), names=SpanNames(f"http, {CURRENT_ONLY}")).spans[-1].attributes
    assert set(both) - set(current) == {
        "gen_ai.request.id",
        "gen_ai.request.n",
        "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens",
        "gen_ai.usage.cached_tokens",
        "gen_ai.usage.num_sequences",
        "gen_ai.latency.e2e",
        "gen_ai.latency.time_to_first_token",
        "gen_ai.latency.time_in_queue",
        "gen_ai.latency.time_in_model_prefill",
        "gen_ai.latency.time_in_model_decode",
        "gen_ai.latency.time_in_model_inference",
    }
    assert current.items() <= both.items()


def test_every_stage_is_a_child_and_they_touch() -> None:
    stages = served(ledger()).spans[:-1]
    assert [(span.name, span.ended_at) for span in stages] == [(stage[0], stage[1]) for stage in STAGES]
    assert [span.begun_at for span in stages] == [1000, *(span.ended_at for span in stages[:-1])]
    assert {(span.trace_id, span.parent_id) for span in stages} == {(TRACE, SERVER_ID)}
    assert len({span.span_id for span in stages}) == len(STAGES)
    [queue] = [span for span in stages if span.name == "queue"]
    assert queue.attributes == {"vllm_obs.stage": "queue", "vllm_obs.stage.reason": "token_budget"}


def test_several_sequences_have_a_span_each() -> None:
    ledgers = [
        ledger(
            f"r-0-{index}",
            submitted=submitted(f"r-0-{index}", sequence_index=index, num_sequences=2),
            ended=ended(f"r-0-{index}", finish_reason=reason),
        )
        for index, reason in enumerate(("stop", "length"))
    ]
    spans = served(*ledgers)
    server = spans.one("chat tiny")
    sequences = [spans.one("sequence 0"), spans.one("sequence 1")]
    assert [span.parent_id for span in sequences] == [server.span_id, server.span_id]
    assert [span.attributes["vllm_obs.sequence.index"] for span in sequences] == [0, 1]
    assert [span.attributes["gen_ai.request.id"] for span in sequences] == ["r-0-0", "r-0-1"]
    assert [span.parent_id for span in spans.named("decode")] == [span.span_id for span in sequences]
    names = ("input_tokens", "output_tokens", "cache_read.input_tokens")
    assert [server.attributes[f"gen_ai.usage.{name}"] for name in names] == [7, 6, 4]
    assert server.attributes["gen_ai.response.finish_reasons"] == ["stop", "length"]
    assert server.attributes["gen_ai.request.choice.count"] == 2


@pytest.mark.parametrize("is_http_first", [True, False])
def test_the_facts_may_come_in_any_order(is_http_first: bool) -> None:
    view, sink = view_and_spans()
    closed = ledger()
    view.record(API, closed.submitted)
    steps = [lambda: view.record(API, http_ended()), lambda: view.sequence_closed(closed)]
    for step in steps if is_http_first else steps[::-1]:
        assert sink.spans == []
        step()
    assert len(sink.spans) == 1 + len(STAGES)


def test_a_rejected_request_is_a_server_span_with_an_error() -> None:
    view, sink = view_and_spans()
    view.record(API, http_ended(status=400, reason="invalid_request", ended_at=1500, first_byte_at=1400))
    [server] = sink.spans
    assert (server.name, server.kind, server.error) == ("chat", SpanKind.SERVER, "HTTP 400 invalid_request")
    assert (server.begun_at, server.ended_at, server.parent_id) == (1000, 1500, CALLER)
    assert server.attributes["error.type"] == "invalid_request"
    assert server.attributes["http.response.status_code"] == 400


def test_a_route_that_does_not_generate_is_named_by_it() -> None:
    view, sink = view_and_spans()
    view.record(API, http_ended(handler="/v1/models", method="GET", status=404))
    assert sink.spans[0].name == "GET /v1/models"
    assert (sink.spans[0].error, sink.spans[0].attributes["error.type"]) == ("HTTP 404", "404")
    assert "gen_ai.operation.name" not in sink.spans[0].attributes


def test_scrapes_and_probes_are_no_traces_of_their_own() -> None:
    view, sink = view_and_spans()
    view.record(API, http_ended(handler="/metrics", method="GET", trace_parent=NO_PARENT))
    assert sink.spans == []
    view.record(API, http_ended(status=401, reason="unauthorized", trace_parent=NO_PARENT))
    assert [span.error for span in sink.spans] == ["HTTP 401 unauthorized"]


@pytest.mark.parametrize(
    ("ending", "http", "error_type", "error"),
    [
        (ended(finish_reason="abort"), http_ended(status=499, reason="client_left"), "client_left", "abort"),
        (ended(finish_reason="abort"), http_ended(), "abort", "abort"),
        (ended(finish_reason="error", error="nan_logits"), http_ended(), "nan_logits", "error: nan_logits"),
        (
            ended(finish_reason="error", error="step 7 failed"),
            http_ended(status=500, reason="internal_error"),
            "internal_error",
            "error: step 7 failed",
        ),
        (None, None, "server_gone", "the API server ended before the sequence did"),
    ],
)
def test_what_was_not_generated_has_a_status(ending: Any, http: Any, error_type: str, error: str) -> None:
    view, sink = view_and_spans()
    closed = ledger(ended=ending, http=http, since=5000, is_abandoned=ending is None)
    view.record(API, closed.submitted)
    if http is not None:
        view.record(API, http)
    view.sequence_closed(closed)
    server = sink.spans[-1]
    assert (server.attributes["error.type"], server.error) == (error_type, error)
    assert len(sink.spans) == 1 + len(STAGES)


@pytest.mark.parametrize(("status", "error"), [(200, ""), (500, "HTTP 500")])
def test_where_an_ending_was_lost_the_reply_says_whether_all_went_well(status: int, error: str) -> None:
    view, sink = view_and_spans()
    http = http_ended(status=status)
    closed = ledger(ended=None, http=http, since=5000, is_partial=True)
    view.record(API, closed.submitted)
    view.record(API, http)
    view.sequence_closed(closed)
    assert sink.spans[-1].error == error


def test_five_that_were_aborted_are_five_traces_with_status() -> None:
    view, sink = view_and_spans()
    for index in range(5):
        name = f"r{index}"
        http = http_ended(http_id=name, status=499, reason="client_left")
        closed = ledger(
            name, submitted=submitted(name, http_id=name), ended=ended(name, finish_reason="abort"), http=http
        )
        view.record(API, closed.submitted)
        view.record(API, http)
        view.sequence_closed(closed)
    servers = sink.named("chat tiny")
    assert [server.error for server in servers] == ["abort"] * 5
    assert len({server.span_id for server in servers}) == 5


@pytest.mark.parametrize("trace_parent", ["", NOT_SAMPLED, "nonsense", "00-xyz-1-01"])
def test_what_is_not_sampled_is_not_a_span(trace_parent: str) -> None:
    closed = ledger(submitted=submitted(trace_parent=trace_parent))
    assert served(closed, http=http_ended(trace_parent=trace_parent)).spans == []


def test_offline_a_sequence_is_a_request_of_its_own() -> None:
    view, sink = view_and_spans()
    closed = ledger(submitted=submitted(http_id=""), http=None)
    view.record(API, closed.submitted)
    view.sequence_closed(closed)
    assert (sink.spans[-1].name, sink.spans[-1].ended_at) == ("chat tiny", 5200)


@pytest.mark.parametrize(("level", "num_spans"), [(0, 0), (REQUESTS, 1), (STAGE_LEVEL, 1 + len(STAGES))])
def test_the_detail_level_says_how_much(level: int, num_spans: int) -> None:
    assert len(served(ledger(), detail_level=level).spans) == num_spans


def test_a_request_waits_a_while_for_ledgers_that_do_not_come() -> None:
    view, sink = view_and_spans()
    view.record(API, submitted())
    view.record(API, http_ended())
    view.tick(6000 + LINGER_NS)
    assert sink.spans == []
    view.tick(6001 + LINGER_NS + 10**9)
    assert [span.name for span in sink.spans] == ["chat"]


def test_a_sequence_that_ended_waits_for_its_reply() -> None:
    view, sink = view_and_spans()
    view.record(API, submitted())
    view.sequence_closed(ledger(http=None))
    assert sink.spans == []
    view.tick(400 * 10**9)
    assert len(sink.spans) == 1 + len(STAGES)


def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_spans, "MAX_OPEN", 10)
    requests = RequestSpans(RUN, SpanNames(), {})
    for number in range(25):
        assert list(requests.submitted(API, submitted(f"{number}-0", http_id=str(number)))) == []
    assert len(requests) == 10
    whole = list(requests.http_ended(API, http_ended(http_id="new")))
    assert [tree.requests[0].span_id for tree in whole] == [span_id(RUN, "http", "new")]


def test_over_budget_stages_go_first_and_what_is_left_out_is_counted() -> None:
    view, sink = view_and_spans(spans_per_second=3.0)
    for number in range(8):
        name = f"r{number}"
        http = http_ended(http_id=name)
        closed = ledger(name, submitted=submitted(name, http_id=name), http=http)
        view.record(API, closed.submitted)
        view.record(API, http)
        view.sequence_closed(closed)
    assert [span.name for span in sink.spans] == ["chat tiny"] * 8
    assert view.num_spans_over_budget == 8 * len(STAGES)


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        (f"00-{TRACE:032x}-{CALLER:016x}-01", TraceParent(TRACE, CALLER, True)),
        (f"00-{TRACE:032x}-{0:016x}-00", TraceParent(TRACE, 0, False)),
        (f"00-{0:032x}-{CALLER:016x}-01", None),
        ("", None),
        ("a-b", None),
    ],
)
def test_the_parent_of_a_record_may_be_nobody(text: str, parent: TraceParent | None) -> None:
    assert recorded_parent(text) == parent


def test_intervals_that_last_no_time_are_no_fault() -> None:
    closed = ledger(intervals=intervals((("receive", 1000), ("queue", 1000), ("deliver", 6000))))
    assert [(span.begun_at, span.ended_at) for span in served(closed).spans[:-1]] == [
        (1000, 1000),
        (1000, 1000),
        (1000, 6000),
    ]
