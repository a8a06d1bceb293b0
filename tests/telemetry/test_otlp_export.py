"""Spans reach a real receiver over HTTP and gRPC, and one that is dead costs a counter."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from otlp_receiver import Answer, OtlpReceiver, grpc_receiver, http_receiver, make_tls_files

from vllm_obs.telemetry.otlp_export import ExportLimits, SpanExporter
from vllm_obs.telemetry.otlp_settings import GRPC, HTTP, OtlpFlags, OtlpSettings, OtlpSettingsError, otlp_settings
from vllm_obs.telemetry.otlp_transport import Delivery, Transport, open_transport
from vllm_obs.telemetry.span import Process, Span
from vllm_obs.telemetry.span_resources import SpanResources

API, CORE = Process("APIServer_0", 10), Process("EngineCore_DP0", 11)
OFFSET = 1_700_000_000_000_000_000
QUICK = ExportLimits(delay_seconds=0.02, first_pause_seconds=0.02, max_pause_seconds=0.05, max_tries=3)
RECEIVERS = {HTTP: http_receiver, GRPC: grpc_receiver}

Opened = Callable[..., SpanExporter]


def span(number: int, process: Process = API) -> Span:
    return Span(77, number + 1, 0, f"span {number}", 5, 9, process)


def settings_of(url: str, protocol: str, variables: dict[str, str] | None = None) -> OtlpSettings:
    settings = otlp_settings("traces", OtlpFlags(url, protocol), variables or {})
    assert settings is not None
    return settings


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens exporters, and closes them in the end."""
    with ExitStack() as stack:

        def open_one(settings: OtlpSettings, limits: ExportLimits = QUICK, transport: Transport | None = None):
            transport = transport or open_transport("traces", settings)
            exporter = SpanExporter(transport, settings, SpanResources("run-1", "9.9"), OFFSET, limits)
            stack.callback(exporter.close)
            return exporter

        yield open_one


@pytest.fixture(params=[HTTP, GRPC])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def receiver(protocol: str) -> Iterator[OtlpReceiver]:
    receives: Callable[[], AbstractContextManager[OtlpReceiver]] = RECEIVERS[protocol]
    with receives() as receiver:
        yield receiver


def counts(exporter: SpanExporter) -> tuple[int, int, int]:
    return exporter.num_exported_spans, exporter.num_dropped_spans, exporter.num_failures


def dropped(exporter: SpanExporter) -> dict[str, int]:
    return {reason: num for reason, num in exporter.dropped_spans.items() if num}


def test_spans_arrive_with_their_process_and_wall_times(
    opened: Opened, receiver: OtlpReceiver, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-llm")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=pod-1")
    exporter = opened(settings_of(receiver.url, protocol, {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret"}))
    assert exporter.offer(span(0))
    assert exporter.offer(span(1, CORE))
    receiver.await_that(lambda it: len(it.traces) == 1)
    received = {item.span.name: item for item in receiver.spans()}
    assert {name: item.resource["vllm_obs.role"] for name, item in received.items()} == {
        "span 0": "APIServer_0",
        "span 1": "EngineCore_DP0",
    }
    first = received["span 0"]
    assert (first.span.start_time_unix_nano, first.span.end_time_unix_nano) == (OFFSET + 5, OFFSET + 9)
    expected = {
        "service.name": "my-llm",
        "service.version": "9.9",
        "service.instance.id": "pod-1/run-1/APIServer_0",
        "deployment.environment.name": "test",
        "process.pid": 10,
        "vllm_obs.run": "run-1",
    }
    assert expected.items() <= first.resource.items()
    assert receiver.headers[0]["x-key"] == "secret"
    exporter.close()
    assert counts(exporter) == (2, 0, 0)


def test_the_service_is_named_where_the_environment_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    attributes = SpanResources("run-1", "9.9").attributes(Process("Worker_DP0_TP1", 5, "1"))
    names = ("service.name", "service.instance.id", "vllm_obs.role", "vllm_obs.rank")
    assert [attributes[name] for name in names] == ["vllm-obs", "run-1/Worker_DP0_TP1", "Worker_DP0_TP1", "1"]


def test_resources_of_many_processes_are_bounded() -> None:
    resources = SpanResources("run-1")
    for pid in range(1000):
        resources.encoded(Process("Worker", pid))
    assert len(resources._encoded) == 256


@pytest.mark.parametrize("is_known", [True, False])
def test_tls_is_spoken_with_those_that_the_certificate_vouches_for(
    opened: Opened, protocol: str, tmp_path: Path, is_known: bool
) -> None:
    files = make_tls_files(tmp_path)
    if files is None:
        pytest.skip("openssl is not installed")
    receives = http_receiver(files.server_context()) if protocol == HTTP else grpc_receiver(files)
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.certificate)} if is_known else {}
    with receives as receiver:
        exporter = opened(settings_of(receiver.url, protocol, variables), replace(QUICK, max_tries=1))
        exporter.offer(span(0))
        await_that(lambda: counts(exporter) in ((1, 0, 0), (0, 1, 1)))
        assert counts(exporter) == ((1, 0, 0) if is_known else (0, 1, 1))
        exporter.close()


def test_a_tls_file_that_is_none_is_a_named_error(protocol: str, tmp_path: Path) -> None:
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "none.pem")}
    with pytest.raises(OtlpSettingsError, match="cannot use the TLS files"):
        open_transport("traces", settings_of("https://localhost:1", protocol, variables))


def test_compressed_requests_are_the_same(opened: Opened, receiver: OtlpReceiver, protocol: str) -> None:
    exporter = opened(settings_of(receiver.url, protocol, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}))
    for number in range(50):
        exporter.offer(span(number))
    receiver.await_that(lambda it: sum(len(request.resource_spans) for request in it.traces) >= 1)
    exporter.close()
    assert [item.span.name for item in receiver.spans()] == [f"span {number}" for number in range(50)]


def test_a_batch_is_tried_again_while_that_may_help(opened: Opened, receiver: OtlpReceiver, protocol: str) -> None:
    busy = Answer(503, "UNAVAILABLE", headers=(("retry-after", "0.01"),))
    receiver.answers = [busy, busy]
    exporter = opened(settings_of(receiver.url, protocol))
    exporter.offer(span(0))
    receiver.await_that(lambda it: len(it.traces) == 1)
    exporter.close()
    assert counts(exporter) == (1, 0, 2)


@pytest.mark.parametrize("answer", [Answer(400, "INVALID_ARGUMENT"), Answer(401, "UNAUTHENTICATED")])
def test_a_batch_that_is_refused_for_good_is_dropped(
    opened: Opened, receiver: OtlpReceiver, protocol: str, answer: Answer
) -> None:
    receiver.answers = [answer]
    exporter = opened(settings_of(receiver.url, protocol))
    exporter.offer(span(0))
    receiver.await_that(lambda it: len(it.headers) == 1)
    exporter.offer(span(1))
    receiver.await_that(lambda it: len(it.traces) == 1)
    exporter.close()
    assert counts(exporter) == (1, 1, 1)
    assert dropped(exporter) == {"refused": 1}


def test_a_redirect_takes_no_header_elsewhere(opened: Opened) -> None:
    with http_receiver() as elsewhere, http_receiver() as receiver:
        receiver.answers = [Answer(307, headers=(("location", f"{elsewhere.url}/v1/traces"),))]
        exporter = opened(settings_of(receiver.url, HTTP))
        exporter.offer(span(0))
        await_that(lambda: exporter.num_dropped_spans == 1)
        assert elsewhere.headers == []
        exporter.close()


def test_spans_that_the_receiver_rejects_count_as_dropped(
    opened: Opened, receiver: OtlpReceiver, protocol: str
) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=2)
    receiver.answers = [Answer(body=ExportTraceServiceResponse(partial_success=partial).SerializeToString())]
    exporter = opened(settings_of(receiver.url, protocol))
    for number in range(5):
        exporter.offer(span(number))
    await_that(lambda: sum(counts(exporter)) == 5)
    assert counts(exporter) == (3, 2, 0)
    assert dropped(exporter) == {"refused": 2}


def test_a_request_is_no_larger_than_receivers_take(opened: Opened, receiver: OtlpReceiver, protocol: str) -> None:
    large = Span(7, 8, 0, "large", 1, 2, API, {"text": "x" * 100_000})
    exporter = opened(settings_of(receiver.url, protocol), replace(QUICK, max_batch=100))
    for _ in range(100):
        exporter.offer(large)
    await_that(lambda: exporter.num_exported_spans == 100)
    assert max(request.ByteSize() for request in receiver.traces) < 3 << 20


def test_a_dead_endpoint_costs_a_counter_and_no_time(opened: Opened, protocol: str) -> None:
    exporter = opened(settings_of(f"http://localhost:{free_port()}", protocol))
    exporter.offer(span(0))
    await_that(lambda: exporter.num_dropped_spans == 1)
    assert counts(exporter) == (0, 1, 3)
    assert dropped(exporter) == {"unreachable": 1}
    began_at = time.monotonic()
    exporter.close()
    assert time.monotonic() - began_at < 6


def test_an_endpoint_that_never_answers_does_not_keep_the_process(opened: Opened, protocol: str) -> None:
    with silent_port() as port:
        exporter = opened(settings_of(f"http://localhost:{port}", protocol))
        exporter.offer(span(0))
        await_that(lambda: exporter.num_queued_spans == 0)
        began_at = time.monotonic()
        exporter.close(timeout_seconds=1.0)
        assert time.monotonic() - began_at < 3
    assert exporter.num_exported_spans == 0


def test_what_is_queued_is_sent_before_the_end(opened: Opened, receiver: OtlpReceiver, protocol: str) -> None:
    exporter = opened(settings_of(receiver.url, protocol), replace(QUICK, delay_seconds=60.0, max_batch=10))
    for number in range(25):
        exporter.offer(span(number))
    exporter.close()
    assert counts(exporter) == (25, 0, 0)
    assert not exporter.offer(span(99))
    assert counts(exporter) == (25, 1, 0)


class BlockedTransport:
    """Holds the first request until it is let go."""

    def __init__(self) -> None:
        self.is_free = threading.Event()
        self.is_held = threading.Event()

    def send(self, payload: bytes, timeout_seconds: float) -> Delivery:
        self.is_held.set()
        self.is_free.wait(20)
        return Delivery()

    def close(self) -> None:
        self.is_free.set()


def test_a_full_queue_drops_and_never_blocks(opened: Opened) -> None:
    transport = BlockedTransport()
    limits = replace(QUICK, max_queue=10, max_batch=5)
    exporter = opened(OtlpSettings("nowhere"), limits, transport)
    for number in range(5):
        exporter.offer(span(number))
    assert transport.is_held.wait(20)
    taken = [exporter.offer(span(number)) for number in range(1000)]
    assert (taken.count(True), exporter.num_queued_spans, exporter.num_dropped_spans) == (10, 10, 990)
    transport.is_free.set()
    await_that(lambda: exporter.num_exported_spans == 15)
    exporter.close()
    assert not exporter.offer(span(0))
    assert dropped(exporter) == {"queue_full": 990, "closing": 1}


class BrokenTransport(BlockedTransport):
    def send(self, payload: bytes, timeout_seconds: float) -> Delivery:
        raise ZeroDivisionError


def test_a_transport_that_breaks_its_word_costs_its_batch(opened: Opened) -> None:
    exporter = opened(OtlpSettings("nowhere"), transport=BrokenTransport())
    for number in range(2):
        exporter.offer(span(number))
        await_that(lambda: exporter.num_dropped_spans == number + 1)  # noqa: B023
    assert dropped(exporter) == {"unreachable": 2}


def test_a_span_that_cannot_be_encoded_costs_only_itself(
    opened: Opened, receiver: OtlpReceiver, protocol: str
) -> None:
    exporter = opened(settings_of(receiver.url, protocol))
    exporter.offer(span(0)._replace(begun_at=-(2**70)))
    exporter.offer(span(1))
    receiver.await_that(lambda it: len(it.traces) == 1)
    exporter.close()
    assert [item.span.name for item in receiver.spans()] == ["span 1"]
    assert counts(exporter) == (1, 1, 0)
    assert dropped(exporter) == {"unencodable": 1}


def test_the_environment_sets_the_limits() -> None:
    variables = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "200",
        "OTEL_BSP_SCHEDULE_DELAY": "250",
    }
    assert ExportLimits.of(variables) == ExportLimits(max_queue=100, max_batch=100, delay_seconds=0.25)
    assert ExportLimits.of({}) == ExportLimits()
    with pytest.raises(OtlpSettingsError):
        ExportLimits.of({"OTEL_BSP_SCHEDULE_DELAY": "never"})


def await_that(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]
