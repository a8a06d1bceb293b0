"""The Observer's configuration: taken from plain values, checked, and shown without its secrets."""

from pathlib import Path

import pytest

from vllm_obs.telemetry.observer_config import ObserverConfig, ObserverConfigError


def test_known_values_are_fields_and_others_are_facts() -> None:
    config = ObserverConfig.of(
        {"run_dir": "/r", "inspect_port": 9000, "served_model_names": ["a"], "command": "serve", "version": None}
    )
    assert config == ObserverConfig(
        Path("/r"), inspect_port=9000, served_model_names=("a",), facts={"command": "serve"}
    )


def test_header_values_are_not_shown() -> None:
    config = ObserverConfig.of({"run_dir": "/r", "otlp_headers": {"authorization": "secret"}, "command": "serve"})
    shown = config.shown()
    assert "secret" not in repr(shown)
    assert (shown["otlp_headers"], shown["command"], shown["run_dir"]) == (["authorization"], "serve", "/r")


@pytest.mark.parametrize(
    "values", [{}, {"run_dir": ""}, {"run_dir": "/r", "inspect_port": 70000}, {"run_dir": "/r", "detail_level": 4}]
)
def test_what_cannot_be_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ObserverConfigError):
        ObserverConfig.of(values)
