"""From facts to a receiver: all that is exported, opened from flags and environment and closed in time."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from otlp_receiver import OtlpReceiver, Received, grpc_receiver, http_receiver
from span_facts import API, CALLER, CORE, TRACE, http_ended, intervals, ledger, step_facts, submitted

from vllm_obs.telemetry.otlp_encoding import Histogram, HistogramPoint
from vllm_obs.telemetry.otlp_settings import GRPC, HTTP, OtlpFlags, OtlpSettings
from vllm_obs.telemetry.otlp_transport import Transport
from vllm_obs.telemetry.tracing import ExportCounts, TracedRun, Tracing, open_tracing

RECEIVERS = {HTTP: http_receiver, GRPC: grpc_receiver}
RUN = TracedRun("run-1", "9.9", wall_offset=1_700_000_000 * 10**9)


def one_histogram() -> list[Histogram]:
    return [Histogram("gen_ai.server.request.duration", "", "s", [HistogramPoint({}, (1.0,), (1, 0), 0.5)])]


@pytest.fixture(params=[HTTP, GRPC])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def receiver(protocol: str) -> Iterator[OtlpReceiver]:
    with RECEIVERS[protocol]() as receiver:
        yield receiver


def serve_one_request(tracing: Tracing) -> None:
    view = tracing.view
    view.record(API, submitted())
    for step, at in enumerate((2900, 3900, 4900), 1):
        facts = step_facts(step, ["r-0-0"], at)
        view.record(CORE, facts.planned)
        view.record(CORE, facts.workers[0])
        assert facts.answered is not None
        view.record(CORE, facts.answered)
        view.step_closed(facts)
    view.record(API, http_ended())
    stages = (("queue", 2910), ("prefill", 2990), ("decode", 4990), ("deliver", 6000))
    view.sequence_closed(ledger(intervals=intervals(stages)))


def children(spans: list[Received], parent: Received) -> list[Received]:
    return [span for span in spans if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)]


def linked(spans: list[Received], span: Received) -> list[Received]:
    wanted = [(link.trace_id, link.span_id) for link in span.span.links]
    return [found for key in wanted for found in spans if (found.span.trace_id, found.span.span_id) == key]


def test_from_the_server_span_everything_can_be_reached(receiver: OtlpReceiver, protocol: str) -> None:
    tracing = open_tracing(RUN, OtlpFlags(receiver.url, protocol), {})
    assert tracing is not None
    serve_one_request(tracing)
    tracing.close(7000, one_histogram)
    spans = receiver.spans()
    [server] = [span for span in spans if span.span.kind == 2]
    assert (server.trace_id, server.parent_id, server.span.name) == (TRACE, CALLER, "chat tiny")
    stages = children(spans, server)
    assert [stage.span.name for stage in stages] == ["queue", "prefill", "decode", "deliver"]
    assert [stage.resource["vllm_obs.role"] for stage in stages] == [
        "EngineCore_DP0",
        "EngineCore_DP0",
        "EngineCore_DP0",
        "APIServer_0",
    ]
    steps = [step for stage in stages for step in linked(spans, stage)]
    assert [step.attributes["vllm_obs.step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert [part.span.name for part in children(spans, step)] == ["schedule", "execute_model", "update"]
        assert all(back in stages for back in linked(spans, step))
    assert all(span.span.end_time_unix_nano >= span.span.start_time_unix_nano > RUN.wall_offset for span in spans)
    assert len(receiver.metrics) == 1
    assert tracing.counts() == ExportCounts(num_exported_spans=5 + 3 * 8)


def test_without_an_endpoint_there_is_no_tracing() -> None:
    assert open_tracing(RUN, OtlpFlags(), {}) is None


def test_settings_that_cannot_work_are_said_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert open_tracing(RUN, OtlpFlags("http://localhost:1", "carrier-pigeon"), {}) is None
    assert "carrier-pigeon" in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "variables", "failed"),
    [
        ("http://[::1:4317", {}, "spans"),
        ("http://localhost:9", {"OTEL_BSP_MAX_QUEUE_SIZE": "inf"}, "spans"),
        ("http://localhost:9", {"OTEL_METRIC_EXPORT_INTERVAL": "nan"}, "metrics"),
        ("http://localhost:9", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://[::1:4317"}, "metrics"),
    ],
)
def test_what_cannot_be_set_up_is_named_and_the_rest_works(
    endpoint: str, variables: dict[str, str], failed: str
) -> None:
    named: list[str] = []
    tracing = open_tracing(RUN, OtlpFlags(endpoint, HTTP), variables, named.append)
    assert (named, tracing is None) == ([failed], failed == "spans")
    if tracing is not None:
        tracing.close(0, list)


def test_even_an_error_nobody_thought_of_leaves_telemetry_running(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_transport(signal: str, settings: OtlpSettings) -> Transport:
        raise ZeroDivisionError(signal)

    monkeypatch.setattr("vllm_obs.telemetry.tracing.open_transport", open_transport)
    named: list[str] = []
    assert open_tracing(RUN, OtlpFlags("http://localhost:9", HTTP), {}, named.append) is None
    assert named == ["spans"]
    assert "ZeroDivisionError: traces" in caplog.text


def test_a_dead_endpoint_is_left_within_two_seconds(protocol: str) -> None:
    tracing = open_tracing(RUN, OtlpFlags("http://localhost:9", protocol), {})
    assert tracing is not None
    serve_one_request(tracing)
    began_at = time.monotonic()
    tracing.close(7000, one_histogram)
    assert time.monotonic() - began_at < 6
    counts = tracing.counts()
    assert (counts.num_exported_spans, counts.num_dropped_spans) == (0, 29)
    assert counts.num_trace_failures >= 1


def test_a_stepped_wall_clock_moves_nothing(
    receiver: OtlpReceiver, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TracedRun("run-1", wall_offset=time.time_ns() - time.monotonic_ns())
    tracing = open_tracing(run, OtlpFlags(receiver.url, protocol), {"OTEL_METRICS_EXPORTER": "none"})
    assert tracing is not None
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
    serve_one_request(tracing)
    tracing.close(7000, one_histogram)
    starts = {span.span.start_time_unix_nano - run.wall_offset for span in receiver.spans() if span.span.kind == 2}
    assert starts == {1000}
    assert receiver.metrics == []


@pytest.mark.parametrize(("protocol", "is_loaded"), [(HTTP, False), (GRPC, True)])
def test_grpc_is_loaded_only_when_it_is_spoken(protocol: str, is_loaded: bool) -> None:
    script = f"""
import sys
from vllm_obs.telemetry.otlp_settings import OtlpFlags
from vllm_obs.telemetry.tracing import TracedRun, open_tracing
tracing = open_tracing(TracedRun("r"), OtlpFlags("http://localhost:9", {protocol!r}), {{}})
tracing.close(0, lambda: [])
print("grpc" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{is_loaded}\n"
