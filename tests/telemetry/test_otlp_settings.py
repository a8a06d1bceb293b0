"""Flags go before the environment, a signal's own variable before the general one, and nonsense has a name."""

import pytest

from vllm_obs.telemetry.otlp_settings import HTTP, OtlpFlags, OtlpSettings, OtlpSettingsError, otlp_settings

FLAG = OtlpFlags(endpoint="http://collector:4317")


def test_without_an_endpoint_nothing_is_exported() -> None:
    assert otlp_settings("traces", OtlpFlags(), {}) is None
    assert otlp_settings("traces", FLAG, {"OTEL_SDK_DISABLED": "true"}) is None
    assert otlp_settings("metrics", FLAG, {"OTEL_METRICS_EXPORTER": "none"}) is None


def test_grpc_is_the_default_and_the_scheme_decides_about_tls() -> None:
    assert otlp_settings("traces", FLAG, {}) == OtlpSettings("collector:4317")
    assert otlp_settings("traces", OtlpFlags("https://collector:4317"), {}) == OtlpSettings(
        "collector:4317", is_secure=True
    )


@pytest.mark.parametrize(
    ("flags", "variables", "is_secure"),
    [
        (OtlpFlags("collector:4317"), {}, True),
        (OtlpFlags("collector:4317", is_insecure=True), {}, False),
        (OtlpFlags("collector:4317"), {"OTEL_EXPORTER_OTLP_TRACES_INSECURE": "True"}, False),
        (OtlpFlags("https://collector:4317", is_insecure=True), {}, True),
    ],
)
def test_only_an_endpoint_without_scheme_can_be_made_insecure(
    flags: OtlpFlags, variables: dict[str, str], is_secure: bool
) -> None:
    assert otlp_settings("traces", flags, variables) == OtlpSettings("collector:4317", is_secure=is_secure)


@pytest.mark.parametrize(
    ("signal", "endpoint", "url"),
    [
        ("traces", "http://c:4318", "http://c:4318/v1/traces"),
        ("traces", "c:4318", "http://c:4318/v1/traces"),
        ("traces", "http://c:4318/", "http://c:4318/v1/traces"),
        ("traces", "http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("traces", "http://c/api/otel/spans", "http://c/api/otel/spans"),
        ("metrics", "http://c:4318", "http://c:4318/v1/metrics"),
        ("metrics", "http://c:4318/v1/traces", "http://c:4318/v1/metrics"),
        ("metrics", "https://c/otlp/v1/traces?key=1", "https://c/otlp/v1/metrics?key=1"),
    ],
)
def test_the_path_of_a_signal_is_added_where_it_is_missing(signal: str, endpoint: str, url: str) -> None:
    settings = otlp_settings(signal, OtlpFlags(endpoint, HTTP), {})
    assert settings is not None
    assert settings.endpoint == url


def test_the_environment_says_what_the_flags_do_not() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://general:1/base",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20general,X-Tenant=a",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/key",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/cert",
    }
    flags = OtlpFlags(headers={"X-Tenant": "b"})
    assert otlp_settings("traces", flags, variables) == OtlpSettings(
        endpoint="https://general:1/base/v1/traces",
        protocol=HTTP,
        headers=(("authorization", "Bearer general"), ("x-tenant", "b")),
        timeout_seconds=3.0,
        is_gzip=True,
        is_secure=True,
        ca_file="/ca",
        key_file="/key",
        certificate_file="/cert",
    )
    own = variables | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:2/exactly"}
    settings = otlp_settings("traces", OtlpFlags(), own)
    assert settings is not None
    assert settings.endpoint == "http://own:2/exactly"
    flagged = otlp_settings("traces", OtlpFlags("http://flag:3"), own)
    assert flagged is not None
    assert flagged.endpoint == "http://flag:3/v1/traces"


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        (OtlpFlags("http://c", "http/json"), {}, "'http/json'.*grpc, http/protobuf"),
        (OtlpFlags("ftp://c"), {}, "'ftp://c'"),
        (OtlpFlags("http://"), {}, "'http://'"),
        (FLAG, {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "'soon'.*not a number"),
        (FLAG, {"OTEL_EXPORTER_OTLP_TIMEOUT": "-1"}, "'-1'.*above 0"),
        (FLAG, {"OTEL_EXPORTER_OTLP_TIMEOUT": "inf"}, "'inf'.*at most"),
        (FLAG, {"OTEL_EXPORTER_OTLP_TIMEOUT": "nan"}, "'nan'.*above 0"),
        (OtlpFlags("http://[::1:4317"), {}, "Invalid IPv6 URL"),
        (OtlpFlags("http://[::1:4317", HTTP), {}, "Invalid IPv6 URL"),
        (OtlpFlags("http://c:port"), {}, "'http://c:port'"),
        (OtlpFlags("c:99999", HTTP), {}, "c:99999'.*[Pp]ort"),
    ],
)
def test_what_cannot_work_is_a_named_error(flags: OtlpFlags, variables: dict[str, str], words: str) -> None:
    with pytest.raises(OtlpSettingsError, match=words):
        otlp_settings("traces", flags, variables)
