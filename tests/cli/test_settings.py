"""Flags, environment and file: who wins, and what is refused."""

from pathlib import Path

import pytest

from vllm_obs.cli.serve import SERVE_FLAGS, read_settings
from vllm_obs.cli.settings import environment_name, read_environment
from vllm_obs.engine.errors import ConfigError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in SERVE_FLAGS:
        monkeypatch.delenv(environment_name(flag), raising=False)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_only_what_was_given_is_set() -> None:
    assert read_settings([]) == {}
    assert read_settings(["m.gguf", "--port", "1", "--no-enable-prefix-caching", "--disable-log-stats"]) == {
        "model": "m.gguf",
        "port": 1,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
    }


def test_spellings_of_a_flag() -> None:
    expected = {"max_model_len": 4096}
    for words in (["--max-model-len", "4K"], ["--max_model_len=4K"], ["--max-model-len=4096"]):
        assert read_settings(words) == expected


def test_flags_with_several_values() -> None:
    words = ["m", "--served-model-name", "a", "b", "--api-key", "k1", "--api-key", "k2"]
    assert read_settings(words) == {"model": "m", "served_model_name": ["a", "b"], "api_key": ["k1", "k2"]}


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text("port: 1\nseed: 1\nmax-num-seqs: 1\napi_key: [from, file]\n")
    monkeypatch.setenv("VLLM_OBS_PORT", "2")
    monkeypatch.setenv("VLLM_OBS_SEED", "2")
    monkeypatch.setenv("VLLM_OBS_CONFIG", str(config_file))
    values = read_settings(["--port", "3"])
    assert {name: values[name] for name in ("port", "seed", "max_num_seqs", "api_key")} == {
        "port": 3,
        "seed": 2,
        "max_num_seqs": 1,
        "api_key": ["from", "file"],
    }
    assert read_settings(["--api-key", "typed"])["api_key"] == ["typed"]


def test_every_kind_of_flag_in_a_file(config_file: Path) -> None:
    config_file.write_text(
        "model: m.gguf\n"
        "served-model-name: [a, b]\n"
        "api_key: alone\n"
        "max-model-len: 4K\n"
        "gpu_memory_utilization: 0.5\n"
        "enable-prefix-caching: false\n"
        "disable-log-stats: true\n"
        "allowed-origins: [http://a, http://b]\n"
        "chat-template:\n"
    )
    values = read_settings(["--config", str(config_file)])
    del values["config"]
    assert values == {
        "model": "m.gguf",
        "served_model_name": ["a", "b"],
        "api_key": ["alone"],
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.5,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "allowed_origins": ("http://a", "http://b"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "unknown key prot (nearest: port)"),
        ("port: 1\nport: x", "'x' is not a whole number"),
        ("max-model-len: 1\nmax_model_len: 2", "max_model_len is there twice"),
        ("disable-log-stats: 3", "3 is not true or false"),
        ("port: true", "True is not a plain value"),
        ("port: [1, 2]", "one value is allowed, not 2"),
        ("port: {a: 1}", "is not a plain value"),
        ("dtype: fp8", "'fp8' is not one of"),
        ("- port", "holds a list"),
        ("a: [", "is not YAML"),
        ("config: other.yaml", "unknown key config"),
        ("port: !!python/object/apply:os.system [ls]", "is not YAML"),
    ],
)
def test_bad_files(config_file: Path, text: str, message: str) -> None:
    config_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(["--config", str(config_file)])
    assert message in str(caught.value)
    assert str(config_file) in str(caught.value)


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"--config /no/such\.yaml: No such file"):
        read_settings(["--config", "/no/such.yaml"])


def test_environment_values() -> None:
    environ = {
        "VLLM_OBS_API_KEY": "a,b",
        "VLLM_OBS_ENABLE_PREFIX_CACHING": "0",
        "VLLM_OBS_DISABLE_LOG_STATS": "true",
        "VLLM_OBS_HOST": "",
        "VLLM_OBS_TEST_HOOKS": "1",
    }
    assert read_environment(SERVE_FLAGS, environ) == {
        "api_key": ["a", "b"],
        "enable_prefix_caching": False,
        "disable_log_stats": True,
    }


def test_the_address_kubernetes_sets_for_a_service_of_our_name_is_no_port() -> None:
    assert read_environment(SERVE_FLAGS, {"VLLM_OBS_PORT": "tcp://10.0.0.1:8000"}) == {}


def test_a_bad_environment_value_names_its_variable() -> None:
    with pytest.raises(ConfigError, match="environment variable VLLM_OBS_SEED: 'x' is not a whole number"):
        read_environment(SERVE_FLAGS, {"VLLM_OBS_SEED": "x"})


def test_two_models() -> None:
    assert read_settings(["a", "--model", "a"]) == {"model": "a"}
    with pytest.raises(ConfigError, match="two models are given: a and --model b"):
        read_settings(["a", "--model", "b"])
