"""OpenTelemetry's variables: an endpoint, a switch, a sampler."""

import pytest

from vllm_obs.server.trace_environment import Sampling, TraceEnvironment


@pytest.mark.parametrize(
    ("variables", "has_endpoint", "is_off"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}, False, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_SDK_DISABLED": "True"}, True, True),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, False, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False, True),
    ],
)
def test_endpoint_and_switch(variables: dict[str, str], has_endpoint: bool, is_off: bool) -> None:
    assert TraceEnvironment.of(variables) == TraceEnvironment(has_endpoint, is_off)


@pytest.mark.parametrize(
    ("name", "argument", "sampling"),
    [
        ("always_on", "0.5", Sampling(1.0, False)),
        ("always_off", "", Sampling(0.0, False)),
        ("traceidratio", "0.25", Sampling(0.25, False)),
        ("traceidratio", "", Sampling(1.0, False)),
        ("parentbased_always_on", "", Sampling(1.0, True)),
        ("parentbased_always_off", "", Sampling(0.0, True)),
        ("ParentBased_TraceIdRatio", "1e-3", Sampling(0.001, True)),
    ],
)
def test_every_sampler(name: str, argument: str, sampling: Sampling) -> None:
    variables = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert TraceEnvironment.of(variables).sampling == sampling


@pytest.mark.parametrize(
    ("name", "argument", "sampling"),
    [
        ("jaeger_remote", "", None),
        ("parentbased_", "", None),
        ("traceidratio", "many", Sampling(1.0, False)),
        ("traceidratio", "nan", Sampling(1.0, False)),
        ("parentbased_traceidratio", "1.5", Sampling(1.0, True)),
    ],
)
def test_what_is_no_sampler_is_logged_and_passed_over(
    name: str, argument: str, sampling: Sampling | None, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert TraceEnvironment.of(variables).sampling == sampling
    (record,) = caplog.records
    assert (argument or name) in record.message
