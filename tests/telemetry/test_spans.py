"""The spans of a run as the Observer derives it from its facts: nothing dangles, nothing is negative."""

import random
from pathlib import Path

import pytest
from fact_stream import FactStream
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from otlp_receiver import plain_attributes
from span_facts import SpanList

from vllm_obs.telemetry.checkpoint import Checkpoint
from vllm_obs.telemetry.otlp_encoding import encode_span
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.span import Span, SpanKind
from vllm_obs.telemetry.spans import SpansView
from vllm_obs.telemetry.stages import STAGES
from vllm_obs.telemetry.trace_ids import span_id

RUN = "run-1"
PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def spans_of(stream: FactStream) -> SpanList:
    """All spans of a run whose facts these are."""
    sink, state = SpanList(), RunState()
    state.add_view(SpansView(RUN, sink, spans_per_second=1e9))
    for source, record in stream.facts:
        state.apply(source, record)
    state.tick(stream.now + 60 * 10**9)
    return sink


def links_of(span: Span) -> list[tuple[int, int]]:
    message = OtlpSpan()
    for link in span.links:
        message.MergeFromString(link)
    return [(int.from_bytes(link.trace_id, "big"), int.from_bytes(link.span_id, "big")) for link in message.links]


def random_run(seed: int) -> FactStream:
    """A few sequences with chunked prefill, preemption, stalls and aborts."""
    draw = random.Random(seed)
    stream = FactStream(num_blocks=400)
    stream.describe()
    waiting, running, preempted = [], [], []
    for number in range(6):
        name = f"r-{number}"
        stream.submit(name, trace_parent=PARENT)
        waiting.append(name)
    for _ in range(80):
        if waiting and draw.random() < 0.3:
            running.append(waiting.pop(0))
        if preempted and draw.random() < 0.3:
            running.append(preempted.pop(0))
        gone = [running.pop(0)] if len(running) > 1 and draw.random() < 0.1 else []
        left_out = {
            name: "token_budget" for name in running if stream.sequences[name].is_running and draw.random() < 0.1
        }
        rows = {}
        for name in running:
            sequence = stream.sequences[name]
            known = sequence.num_tokens - (sequence.num_computed if sequence.is_running else 0)
            if name not in left_out:
                rows[name] = max(1, min(known, draw.choice([1, 4, 100])))
        stream.step(rows, preempted=gone, left_out=left_out)
        preempted += gone
        for name in list(running):
            if draw.random() < 0.05:
                running.remove(name)
                stream.abort(name)
            elif stream.sequences[name].num_output_tokens >= 8:
                running.remove(name)
                stream.finish(name)
    for name in [*waiting, *running, *preempted]:
        stream.abort(name)
    return stream


@settings(max_examples=40, deadline=None, database=None)
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_links_resolve_and_stages_fill_the_request(seed: int) -> None:
    spans = spans_of(random_run(seed)).spans
    by_key = {(span.trace_id, span.span_id): span for span in spans}
    assert len(by_key) == len(spans)
    assert all(span.ended_at >= span.begun_at for span in spans)
    assert [key for span in spans for key in links_of(span) if key not in by_key] == []
    servers = [span for span in spans if span.kind is SpanKind.SERVER]
    assert {span.span_id for span in servers} == {span_id(RUN, "http", f"http-r-{n}") for n in range(6)}
    for server in servers:
        stages = [span for span in spans if span.parent_id == server.span_id]
        assert {stage.name for stage in stages} <= set(STAGES)
        assert sum(stage.ended_at - stage.begun_at for stage in stages) == server.ended_at - server.begun_at
        assert (stages[0].begun_at, stages[-1].ended_at) == (server.begun_at, server.ended_at)


def test_every_step_of_a_request_can_be_reached_from_it() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", trace_parent=PARENT)
    stream.step({"r-0": 4})
    stream.step({"r-0": 6})
    for _ in range(3):
        stream.step(["r-0"])
    stream.finish("r-0")
    sink = spans_of(stream)
    by_key = {(span.trace_id, span.span_id): span for span in sink.spans}
    reached = {
        stage: [by_key[key].attributes["vllm_obs.step"] for span in sink.named(stage) for key in links_of(span)]
        for stage in ("prefill", "decode")
    }
    assert reached == {"prefill": [1, 2], "decode": [3, 4, 5]}
    for step in sink.named("engine.step"):
        [back] = links_of(step)
        assert step.span_id in [own for _, own in links_of(by_key[back])]


def test_no_span_holds_more_than_the_facts_do() -> None:
    stream = random_run(7)
    for span in spans_of(stream).spans:
        decoded = OtlpSpan.FromString(encoded_payload(span))
        for value in plain_attributes(decoded.attributes).values():
            assert not isinstance(value, str) or len(value) <= 64


def encoded_payload(span: Span) -> bytes:
    encoded = encode_span(span, 0)
    num_length_bytes = next(index for index in range(1, 6) if encoded[index] < 128)
    return encoded[num_length_bytes + 1 :]


@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
def test_tracing_goes_on_where_an_observer_resumes(reason: str) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", trace_parent=PARENT)
    stream.step(["r-0"])
    stream.finish("r-0", reason)
    late = SpanList()
    view = SpansView(RUN, late, spans_per_second=1e9)
    state = RunState()
    state.add_view(view)
    for source, record in stream.facts[-1:]:
        state.apply(source, record)
    [server] = late.spans
    assert server.span_id == span_id(RUN, "http", "http-r-0")


@pytest.mark.parametrize("num_told", range(6))
def test_a_request_has_the_same_spans_wherever_an_observer_resumes(num_told: int, tmp_path: Path) -> None:
    stream = FactStream()
    stream.describe()
    for index in range(2):
        stream.submit(f"r-{index}", http_id="r", trace_parent=PARENT, sequence_index=index, num_sequences=2)
    rows = ["r-0", "r-1"]
    told = [stream.step(rows), stream.step(rows), stream.end("r-0"), stream.end("r-1"), stream.end_http("r")]
    told += [stream.release("r-0"), stream.release("r-1")]
    num_before = len(stream.facts) - sum(map(len, told[num_told:]))
    first, second, late = RunState(), RunState(), SpanList()
    for fact in stream.facts[:num_before]:
        first.apply(*fact)
    second.add_view(SpansView(RUN, late, spans_per_second=1e9))
    Checkpoint(tmp_path / "checkpoint", {"run": first}).save([], 1)
    Checkpoint(tmp_path / "checkpoint", {"run": second}).load()
    for fact in stream.facts[num_before:]:
        second.apply(*fact)
    assert outlines(late) == outlines(spans_of(stream)) != []


def outlines(sink: SpanList) -> list[tuple[str, int, int]]:
    """The request's spans without their links, which lead to the steps that one Observer saw."""
    return sorted(
        (span.name, span.begun_at, span.ended_at)
        for span in sink.spans
        if span.name in {"chat test-model", "sequence 0", "sequence 1", *STAGES}
    )
