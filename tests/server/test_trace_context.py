"""Which requests are traced, in which trace, and what their clients are told of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import served

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.trace_context import Tracing
from vllm_obs.server.trace_environment import Sampling, TraceEnvironment
from vllm_obs.telemetry.records import HttpRequestEnded, RequestSubmitted
from vllm_obs.telemetry.trace_ids import NO_SPAN, parse_traceparent, span_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = CALLER[:-1] + "0"


def headers(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"accept", b"*/*"), *((b"traceparent", value.encode()) for value in values)]


def test_a_request_joins_its_callers_trace() -> None:
    trace = Tracing("run", 0.0).trace_of("id", headers(CALLER))
    assert trace.recorded == CALLER
    own = f"00-{TRACE}-{span_id('run', 'http', 'id'):016x}-01"
    assert trace.reply_headers() == [(b"x-trace-id", TRACE.encode()), (b"traceparent", own.encode())]


def test_a_caller_who_does_not_sample_is_respected() -> None:
    trace = Tracing("run", 1.0).trace_of("id", headers(UNSAMPLED))
    assert trace.recorded == ""
    assert trace.reply_headers()[1][1].endswith(b"-00")


@pytest.mark.parametrize("values", [(), ("nonsense",), (CALLER, CALLER), ("",)])
def test_without_a_usable_parent_a_trace_begins_here(values: tuple[str, ...]) -> None:
    traces = [Tracing("run", 1.0).trace_of("id", headers(*values)) for _ in range(2)]
    assert all(trace.parent.span_id == NO_SPAN and trace.parent.is_sampled for trace in traces)
    assert traces[0].parent.trace_id != traces[1].parent.trace_id
    assert traces[0].recorded == f"00-{traces[0].parent.trace_hex}-{'0' * 16}-01"


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0, 0), (1.0, 4000, 4000), (0.25, 800, 1200)])
def test_that_share_of_new_traces_is_sampled(rate: float, least: int, most: int) -> None:
    tracing = Tracing("run", rate)
    num_sampled = sum(bool(tracing.trace_of("id", []).recorded) for _ in range(4000))
    assert least <= num_sampled <= most


def test_switched_off_nobody_is_traced_and_callers_are_told() -> None:
    tracing = Tracing("run", 1.0)
    tracing.is_on = False
    for sent in (headers(CALLER), headers()):
        trace = tracing.trace_of("id", sent)
        assert trace.recorded == ""
        assert trace.reply_headers()[1][1].endswith(b"-00")


@pytest.mark.parametrize(("rate", "is_sampled"), [(0.0, False), (1.0, True)])
@pytest.mark.parametrize("sent", [CALLER, UNSAMPLED])
def test_a_sampler_that_is_not_parent_based_decides_for_callers_too(
    rate: float, is_sampled: bool, sent: str
) -> None:
    trace = Tracing("run", rate, is_parent_respected=False).trace_of("id", headers(sent))
    assert trace.recorded == (CALLER if is_sampled else "")
    assert trace.parent.trace_hex == TRACE


def exchange(server: ServerConfig, run_dir: Path, **sent: str) -> tuple[Any, Any, Any]:
    """The reply's headers, and what was recorded of the request and its sequence."""

    async def scenario() -> tuple[Any, Any, Any]:
        async with served(FakeEngine(lambda request: [30]), server, run_dir=run_dir) as app:
            reply = await app.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}, **sent)
            assert reply.status_code == 200
            (ended,) = app.recorder.of(HttpRequestEnded)
            (submitted,) = app.recorder.of(RequestSubmitted)
            return reply.headers, ended, submitted

    return asyncio.run(scenario())


def test_the_reply_and_the_facts_name_the_same_trace(tmp_path: Path) -> None:
    server = ServerConfig(otlp_traces_endpoint="http://localhost:4317")
    replied, ended, submitted = exchange(server, tmp_path, traceparent=CALLER)
    assert ended.trace_parent == submitted.trace_parent == CALLER
    parent = parse_traceparent(replied["traceparent"].encode())
    assert parent is not None
    assert (parent.trace_hex, parent.is_sampled) == (replied["x-trace-id"], True)
    assert parent.span_id == span_id(tmp_path.name, "http", ended.http_id)


def test_the_environment_alone_switches_tracing_on(tmp_path: Path) -> None:
    server = ServerConfig(trace_environment=TraceEnvironment(has_endpoint=True, sampling=Sampling(0.0, False)))
    replied, ended, submitted = exchange(server, tmp_path, traceparent=CALLER)
    assert (ended.trace_parent, submitted.trace_parent) == ("", "")
    assert (replied["x-trace-id"], replied["traceparent"][-3:]) == (TRACE, "-00")


def test_the_environment_switches_tracing_off_whatever_the_flag_says(tmp_path: Path) -> None:
    environment = TraceEnvironment(has_endpoint=True, is_off=True)
    server = ServerConfig(otlp_traces_endpoint="http://localhost:4317", trace_environment=environment)
    replied, ended, _ = exchange(server, tmp_path, traceparent=CALLER)
    assert ended.trace_parent == ""
    assert "x-trace-id" not in replied


def test_without_an_endpoint_there_is_no_trace(tmp_path: Path) -> None:
    replied, ended, submitted = exchange(ServerConfig(), tmp_path, traceparent=CALLER)
    assert (ended.trace_parent, submitted.trace_parent) == ("", "")
    assert {"traceparent", "x-trace-id"} & set(replied) == set()
