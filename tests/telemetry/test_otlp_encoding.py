"""What is written by hand is what OpenTelemetry's own encoder writes."""

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as SdkKind
from opentelemetry.trace.status import Status
from otlp_receiver import plain_attributes

from vllm_obs.telemetry.otlp_encoding import (
    Histogram,
    HistogramPoint,
    encode_attributes,
    encode_context,
    encode_histogram,
    encode_link,
    encode_request,
    encode_resource,
    encode_scope,
    encode_span,
    rejected_items,
)
from vllm_obs.telemetry.span import Attributes, Process, Span, SpanKind

PROCESS = Process("EngineCore_DP0", 1)
OFFSET = 1_700_000_000_000_000_000
KINDS = {SpanKind.INTERNAL: SdkKind.INTERNAL, SpanKind.SERVER: SdkKind.SERVER}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
values = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.lists(texts, max_size=4)
)
attribute_sets = st.dictionaries(texts.filter(bool), values, max_size=5)
ids = st.integers(1, 2**64 - 1)
traces = st.integers(1, 2**128 - 1)
links = st.lists(st.tuples(traces, ids, attribute_sets), max_size=3)


def by_the_sdk(span: Span, linked: list[tuple[int, int, Attributes]]) -> bytes:
    """The same span in an export request of OpenTelemetry's making."""
    context = SpanContext(span.trace_id, span.span_id, False, TraceFlags(1))
    parent = SpanContext(span.trace_id, span.parent_id, span.has_remote_parent, TraceFlags(1))
    sdk_span = ReadableSpan(
        name=span.name,
        context=context,
        parent=parent if span.parent_id else None,
        resource=Resource({"service.name": "x"}),
        attributes=dict(span.attributes),
        links=[Link(SpanContext(trace, own, False), attributes) for trace, own, attributes in linked],
        kind=KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.begun_at + OFFSET,
        end_time=span.ended_at + OFFSET,
        instrumentation_scope=InstrumentationScope("vllm_obs", "1"),
    )
    written: bytes = encode_spans([sdk_span]).SerializeToString()
    return written


@settings(max_examples=200, deadline=None, database=None)
@given(
    ids=st.tuples(traces, ids, st.one_of(st.just(0), ids)),
    name=texts,
    moments=st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)),
    attributes=attribute_sets,
    linked=links,
    kind=st.sampled_from(SpanKind),
    error=texts,
    is_remote=st.booleans(),
)
def test_a_span_is_what_the_sdk_would_send(
    ids: tuple[int, int, int],
    name: str,
    moments: tuple[int, int],
    attributes: Attributes,
    linked: list[tuple[int, int, Attributes]],
    kind: SpanKind,
    error: str,
    is_remote: bool,
) -> None:
    encoded_links = [encode_link(encode_context(t, s), encode_attributes(4, a)) for t, s, a in linked]
    is_remote = is_remote and ids[2] > 0
    span = Span(*ids, name, *moments, PROCESS, attributes, kind, encoded_links, error, is_remote)
    resource = encode_resource({"service.name": "x"})
    own = encode_request({resource: [encode_span(span, OFFSET)]}, encode_scope("vllm_obs", "1"))
    expected = ExportTraceServiceRequest.FromString(by_the_sdk(span, linked))
    if not error:
        # The SDK writes an empty status, which says the same as none.
        expected.resource_spans[0].scope_spans[0].spans[0].ClearField("status")
    assert ExportTraceServiceRequest.FromString(own) == expected


def test_attributes_that_are_none_are_left_out() -> None:
    with_none: Attributes = {"a": 1, "b": None}
    without: Attributes = {"a": 1}
    assert encode_attributes(9, with_none) == encode_attributes(9, without)


def test_a_histogram_says_what_was_counted() -> None:
    point = HistogramPoint({"gen_ai.operation.name": "chat"}, (0.1, 1.0), (3, 2, 1), 4.5)
    metric = encode_histogram(Histogram("gen_ai.server.request.duration", "How long", "s", [point]), 10, 20)
    resource = encode_resource({"service.name": "x"})
    request = ExportMetricsServiceRequest.FromString(encode_request({resource: [metric]}, encode_scope("s", "1")))
    [metrics] = request.resource_metrics[0].scope_metrics
    [decoded] = metrics.metrics
    assert (decoded.name, decoded.description, decoded.unit) == ("gen_ai.server.request.duration", "How long", "s")
    assert decoded.histogram.aggregation_temporality == 2
    [data] = decoded.histogram.data_points
    assert plain_attributes(data.attributes) == {"gen_ai.operation.name": "chat"}
    assert (data.start_time_unix_nano, data.time_unix_nano, data.count, data.sum) == (10, 20, 6, 4.5)
    assert (list(data.bucket_counts), list(data.explicit_bounds)) == ([3, 2, 1], [0.1, 1.0])


def test_what_the_receiver_rejected_is_read_from_its_reply() -> None:
    partial = ExportTracePartialSuccess(rejected_spans=300, error_message="too old")
    assert rejected_items(ExportTraceServiceResponse(partial_success=partial).SerializeToString()) == 300
    assert rejected_items(ExportTraceServiceResponse().SerializeToString()) == 0


@given(reply=st.binary(max_size=60))
@settings(deadline=None, database=None)
def test_any_reply_can_be_read(reply: bytes) -> None:
    assert rejected_items(reply) >= 0


def test_a_number_that_does_not_end_is_read_as_far_as_one_can_be_long() -> None:
    endless = b"\x08" + b"\xff" * 100
    assert rejected_items(b"\x0a" + bytes([len(endless)]) + endless) < 1 << 70
