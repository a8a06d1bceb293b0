"""A live server traces as it is told while it runs, and its replies tell the stages that its ledger holds."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from observed_server import ObservedServer, await_that, synthetic, total
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_receiver import OtlpReceiver, http_receiver

NS = 1e9
SERVER = Span.SpanKind.SPAN_KIND_SERVER


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(receiver: OtlpReceiver) -> Iterator[ObservedServer]:
    """Tracing is set up by the environment alone."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "1.0",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with synthetic("--enable-per-request-metrics", env=env) as server:
        yield server


def order(server: ObservedServer, **change: Any) -> dict[str, Any]:
    """What the inspector answers to an order."""
    connection = http.client.HTTPConnection(server.server.inspector, timeout=30)
    try:
        connection.request("POST", "/inspect/telemetry", json.dumps(change), {"content-type": "application/json"})
        response = connection.getresponse()
        told = json.loads(response.read())
    finally:
        connection.close()
    assert response.status == 200, told
    return dict(told)


def spans_of(server: ObservedServer, receiver: OtlpReceiver, label: str) -> set[str]:
    """The names of all spans in the trace of one more request; its own is sent after its stages'."""
    server.complete(label, prompt="Once upon a time", max_tokens=4)

    def traces() -> list[int]:
        labelled = [span for span in receiver.spans() if span.attributes.get("vllm_obs.request.label") == label]
        return [span.trace_id for span in labelled if span.span.kind == SERVER]

    (trace,) = await_that(traces)
    return {span.span.name for span in receiver.spans() if span.trace_id == trace}


def test_the_environment_alone_traces_everything(server: ObservedServer, receiver: OtlpReceiver) -> None:
    told = server.inspect("telemetry")
    assert (told["detail_level"], told["sample_rate"], told["is_exporting"]) == (3, 1.0, True)
    assert {"text_completion tiny", "prefill", "decode"} <= spans_of(server, receiver, "by-environment")


def test_detail_is_switched_on_the_live_server(server: ObservedServer, receiver: OtlpReceiver) -> None:
    told = order(server, detail_level=1)
    assert (told["detail_level"], told["sample_rate"]) == (1, 1.0)
    assert spans_of(server, receiver, "requests-only") == {"text_completion tiny"}
    assert total(server.samples(), "vllm_obs_telemetry_detail_level") == 1
    order(server, detail_level=3)
    assert {"text_completion tiny", "prefill", "decode"} <= spans_of(server, receiver, "all-again")


def test_without_detail_or_share_nothing_is_traced(server: ObservedServer, receiver: OtlpReceiver) -> None:
    for change in ({"detail_level": 0}, {"detail_level": 3, "sample_rate": 0.0}):
        order(server, **change)
        await_that(lambda: server.inspect("telemetry")["spans"]["num_queued"] == 0)
        num_before = server.inspect("telemetry")["spans"]["num_sent"]
        reply = server.complete(prompt="Once", max_tokens=2)
        server.inspect("state")
        await_that(lambda: server.inspect("telemetry")["spans"]["num_queued"] == 0)
        assert server.inspect("telemetry")["spans"]["num_sent"] == num_before
        assert reply["metrics"]["stages"] is not None
    order(server, sample_rate=1.0)


def test_a_replys_stages_are_those_of_its_ledger(server: ObservedServer) -> None:
    for label in ("first", "second"):
        reply = server.complete(label, prompt="Once upon a time there was", max_tokens=8)
        stages = reply["metrics"]["stages"]
        (sequence,) = await_that(lambda label=label: _closed(server, label))
        ledger = {stage: num_ns / NS for stage, num_ns in sequence["stage_ns"].items()}
        # The ledger knows how long the reply took to be written, the reply only that it was about to be.
        assert 0 <= stages.pop("deliver") <= ledger.pop("deliver")
        assert stages == ledger


def _closed(server: ObservedServer, label: str) -> list[dict[str, Any]] | None:
    sequences: list[dict[str, Any]] = server.request(label)["sequences"]
    return sequences if all(sequence["stage"] == "" for sequence in sequences) else None
