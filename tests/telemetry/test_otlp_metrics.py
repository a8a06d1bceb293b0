"""Histograms are sent now and then; a receiver that takes none is left alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from otlp_receiver import Answer, OtlpReceiver, grpc_receiver, http_receiver, plain_attributes

from vllm_obs.telemetry.otlp_encoding import Histogram, HistogramPoint
from vllm_obs.telemetry.otlp_metrics import MetricsExporter, interval_seconds
from vllm_obs.telemetry.otlp_settings import GRPC, HTTP, OtlpFlags, otlp_settings
from vllm_obs.telemetry.otlp_transport import open_transport
from vllm_obs.telemetry.span_resources import SpanResources

SECOND = 10**9
OFFSET = 1_700_000_000 * SECOND
RECEIVERS = {HTTP: http_receiver, GRPC: grpc_receiver}

Opened = Callable[[str, str], MetricsExporter]


def histograms(count: int = 3) -> list[Histogram]:
    point = HistogramPoint({"gen_ai.operation.name": "chat"}, (0.1, 1.0), (count, 0, 0), 0.5)
    return [
        Histogram("gen_ai.server.request.duration", "How long", "s", [point]),
        Histogram("gen_ai.server.time_to_first_token", "Nothing yet", "s", []),
    ]


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_one(url: str, protocol: str) -> MetricsExporter:
            settings = otlp_settings("metrics", OtlpFlags(url, protocol), {})
            assert settings is not None
            transport = open_transport("metrics", settings)
            exporter = MetricsExporter(transport, settings, SpanResources("run-1", "9.9"), OFFSET, interval=10.0)
            stack.callback(exporter.close)
            return exporter

        yield open_one


@pytest.fixture(params=[HTTP, GRPC])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def receiver(protocol: str) -> Iterator[OtlpReceiver]:
    with RECEIVERS[protocol]() as receiver:
        yield receiver


def await_that(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_histograms_are_sent_when_it_is_time(opened: Opened, receiver: OtlpReceiver, protocol: str) -> None:
    exporter = opened(receiver.url, protocol)
    exporter.tick(5 * SECOND, histograms)
    exporter.tick(14 * SECOND, histograms)
    exporter.tick(15 * SECOND, histograms)
    exporter.tick(16 * SECOND, histograms)
    receiver.await_that(lambda it: len(it.metrics) == 1)
    exporter.tick(20 * SECOND, lambda: histograms(7), is_last=True)
    exporter.close()
    assert (exporter.num_exports, exporter.num_failures) == (2, 0)
    resources = [request.resource_metrics[0] for request in receiver.metrics]
    assert plain_attributes(resources[0].resource.attributes)["service.instance.id"] == "run-1"
    points = []
    for resource in resources:
        [metric] = resource.scope_metrics[0].metrics
        assert metric.name == "gen_ai.server.request.duration"
        [point] = metric.histogram.data_points
        points.append((point.start_time_unix_nano - OFFSET, point.time_unix_nano - OFFSET, point.count))
    assert points == [(5 * SECOND, 15 * SECOND, 3), (5 * SECOND, 20 * SECOND, 7)]


def test_where_nothing_was_counted_nothing_is_sent(opened: Opened, receiver: OtlpReceiver, protocol: str) -> None:
    exporter = opened(receiver.url, protocol)
    exporter.tick(1, lambda: [])
    exporter.tick(20 * SECOND, lambda: histograms()[1:])
    exporter.close()
    assert receiver.headers == []


@pytest.mark.parametrize(
    ("answer", "num_requests", "num_failures"),
    [(Answer(404, "UNIMPLEMENTED"), 1, 0), (Answer(503, "UNAVAILABLE"), 2, 1)],
)
def test_only_a_receiver_that_takes_no_metrics_is_left_alone(
    opened: Opened, receiver: OtlpReceiver, protocol: str, answer: Answer, num_requests: int, num_failures: int
) -> None:
    receiver.answers = [answer]
    exporter = opened(receiver.url, protocol)
    exporter.tick(1, histograms)
    exporter.tick(20 * SECOND, histograms)
    receiver.await_that(lambda it: len(it.headers) == 1)
    await_that(lambda: exporter.num_failures == num_failures)
    exporter.tick(40 * SECOND, histograms)
    exporter.close()
    assert len(receiver.headers) == num_requests
    assert exporter.num_failures == num_failures


def test_the_environment_sets_the_interval() -> None:
    assert interval_seconds({}) == 60.0
    assert interval_seconds({"OTEL_METRIC_EXPORT_INTERVAL": "2500"}) == 2.5
