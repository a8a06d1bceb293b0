"""From flags to ServerConfig."""

from pathlib import Path

import pytest

from vllm_obs.cli.server_flags import SERVER_FLAGS, server_config_from, trace_modules
from vllm_obs.cli.server_flags_observability import metrics_version
from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig

ENDPOINT: dict[str, object] = {"otlp_traces_endpoint": "http://localhost:4317"}


def test_no_flags_are_the_defaults() -> None:
    assert server_config_from({}, {}) == ServerConfig()


def test_every_flag_sets_a_field() -> None:
    names = {flag.name for flag in SERVER_FLAGS} - {"api_key", "api_key_file"}
    assert names <= set(ServerConfig.__dataclass_fields__)


def test_flags_of_the_engine_are_left_alone() -> None:
    config = server_config_from({"seed": 1, "port": 9}, {})
    assert config == ServerConfig(port=9)


def test_keys_from_flags_and_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k2\n\n k3 \nk1\n")
    values = {"api_key": ["k1"], "api_key_file": str(tmp_path / "keys")}
    assert server_config_from(values, {"VLLM_API_KEY": "unused"}).api_keys == ("k1", "k2", "k3")


def test_keys_of_a_file_may_have_names(tmp_path: Path) -> None:
    """A file without tabs is read as ever, whatever else is in its lines."""
    (tmp_path / "keys").write_text("batch\tk2\nold key:with=signs\nweb\tk1\n")
    config = server_config_from({"api_key": ["k1"], "api_key_file": str(tmp_path / "keys")}, {})
    assert config.api_keys == ("k1", "k2", "old key:with=signs")
    assert config.api_key_names == ("web", "batch", "")
    assert config.accounts == ("web", "batch", "key-3")


def test_a_bad_name_in_a_key_file_is_told_without_the_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k1\nkey-1\ts3cret\n")
    with pytest.raises(ConfigError, match="line 2: the name before the tab is none, other") as refused:
        server_config_from({"api_key_file": str(tmp_path / "keys")}, {})
    assert "s3cret" not in str(refused.value)


def test_objectives_are_kept_in_seconds() -> None:
    (flag,) = [flag for flag in SERVER_FLAGS if flag.name == "slo"]
    assert flag.read("ttft:500,tpot=50ms") == "ttft=0.5,tpot=0.05"
    assert server_config_from({"slo": "ttft=0.5"}, {}).slo == "ttft=0.5"
    with pytest.raises(ValueError, match="'fast' is not like ttft"):
        flag.read("fast")


def test_vllms_own_variable_is_read() -> None:
    assert server_config_from({}, {"VLLM_API_KEY": "k"}).api_keys == ("k",)


def test_keys_are_not_shown() -> None:
    assert "s3cret" not in repr(server_config_from({"api_key": ["s3cret"]}, {}))


@pytest.mark.parametrize(
    ("values", "environ", "is_traced", "sampling"),
    [
        ({}, {}, False, (1.0, True)),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True, (1.0, True)),
        (ENDPOINT, {"OTEL_TRACES_EXPORTER": "none"}, False, (1.0, True)),
        (ENDPOINT, {"OTEL_TRACES_SAMPLER": "always_off"}, True, (0.0, False)),
        (ENDPOINT | {"trace_sample_rate": 0.5}, {"OTEL_TRACES_SAMPLER": "always_off"}, True, (0.5, True)),
    ],
)
def test_flag_and_environment_make_one_tracing(
    values: dict[str, object], environ: dict[str, str], is_traced: bool, sampling: tuple[float, bool]
) -> None:
    config = server_config_from(values, environ)
    assert (config.is_traced, config.sampling) == (is_traced, sampling)
    assert config.trace_detail_level == (3 if is_traced else 0)


def test_an_endpoint_in_the_environment_allows_detailed_traces() -> None:
    environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}
    assert server_config_from({"collect_detailed_traces": ["all"]}, environ).collect_detailed_traces == ("all",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": -1}, "--port -1 is not between 0 and 65535"),
        ({"port": 65536}, "--port 65536 is not between 0 and 65535"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout -1 is not between 0 and 86400"),
        ({"stall_timeout": 0.0}, "--stall-timeout 0 is not between 1 and 86400 seconds"),
        ({"stall_timeout": 90_000.0}, "--stall-timeout 90000 is not between 1 and 86400 seconds"),
        ({"engine_restarts": -1}, "--engine-restarts -1 is not between 0 and 100"),
        ({"engine_restarts": 101}, "--engine-restarts 101 is not between 0 and 100"),
        ({"api_key": [""]}, "an API key is empty"),
        ({"api_key": ["a\nb"]}, "an API key is empty, unprintable"),
        ({"trace_sample_rate": 1.5}, "--trace-sample-rate 1.5 is not between 0 and 1"),
        ({"inspect_port": 65536}, "--inspect-port 65536 is not between 0 and 65535"),
        ({"collect_detailed_traces": ["all"]}, "--collect-detailed-traces needs --otlp-traces-endpoint"),
        ({"otlp_traces_endpoint": ""}, "--otlp-traces-endpoint is empty"),
        (
            {"otlp_traces_endpoint": "http://[::1:4317"},
            "--otlp-traces-endpoint: the OTLP endpoint 'http://[::1:4317' is no URL: Invalid IPv6 URL",
        ),
        (
            {"otlp_traces_endpoint": "http://c:port"},
            "--otlp-traces-endpoint: the OTLP endpoint 'http://c:port' is no URL",
        ),
        ({"otlp_traces_endpoint": "nonsense"}, "--otlp-traces-endpoint nonsense is neither http://HOST:PORT nor"),
        ({"inspect_port": 8000}, "--inspect-port 8000 is the port of the API"),
        ({"inspect_host": "192.0.2.1"}, "--inspect-host 192.0.2.1 is no address of this machine"),
        ({"inspect_host": "a" * 300}, "is no address of this machine"),
        ({"otlp_traces_endpoint": "ftp://c"}, "--otlp-traces-endpoint: the OTLP endpoint is 'ftp://c'"),
        ({"root_path": "api"}, "--root-path api does not begin with /"),
        ({"api_key_file": "/no/such"}, "--api-key-file /no/such: No such file"),
    ],
)
def test_bad_values(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_config_from(values, {})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"inspect_port": 8000, "uds": "/tmp/s"},
        {"inspect_port": 0, "port": 0},
        {"engine_restarts": 0},
        {"inspect_host": "192.0.2.1", "disable_telemetry": True},
        {"inspect_host": "localhost"},
        {"otlp_traces_endpoint": "collector:4317"},
        {"otlp_traces_endpoint": "http://collector"},
        {"otlp_traces_endpoint": "[::1]:4317"},
    ],
)
def test_good_values(values: dict[str, object]) -> None:
    config = server_config_from(values, {})
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize("text", ["0.12", "0.12.1", "v0.12.0", "0.13.0rc1", "0.13.0.dev1+gabc"])
def test_versions_whose_hidden_metrics_are_shown(text: str) -> None:
    assert metrics_version(text) == text


@pytest.mark.parametrize("text", ["abc", "", "1", "0.x", "0.12 ", "0.1\n"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version such as"):
        metrics_version(text)


def test_an_empty_key_file_does_not_open_the_server(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(ConfigError, match="holds no key"):
        server_config_from({"api_key_file": str(tmp_path / "keys")}, {})


def test_modules_of_detailed_traces_are_read_as_vllm_reads_them() -> None:
    values = {"collect_detailed_traces": ["model,worker", "all"], "otlp_traces_endpoint": "http://localhost:4317"}
    config = server_config_from(values, {})
    assert config.collect_detailed_traces == ("model", "worker", "all")
    assert config.trace_detail_level == 3
    with pytest.raises(ValueError, match="'tokens' is not one of model, worker, all"):
        trace_modules("model,tokens")


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert server_config_from({}, {}).trace_detail_level == 0


@pytest.mark.parametrize("number", [0, -1, 65])
def test_api_servers_are_as_many_as_a_launcher_can_own(number: int) -> None:
    with pytest.raises(ConfigError, match=f"--api-server-count {number} is not between 1 and 64"):
        server_config_from({"api_server_count": number}, {})
    assert server_config_from({"api_server_count": 64}, {}).api_server_count == 64
