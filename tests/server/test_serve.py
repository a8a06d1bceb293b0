"""The API server's main: what a start that cannot work leaves on standard error, and its exit code."""

import socket

import pytest
from http_app import model_config

from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.serve import run


@pytest.mark.parametrize(("error", "code"), [(ConfigError, 78), (StartupError, 70)])
def test_a_bad_start_is_told_in_one_line(
    error: type[ConfigError | StartupError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def launch(*arguments: object) -> DPLBAsyncMPClient:
        raise error("the model\n  cannot\r\nbe used")

    monkeypatch.setattr(DPLBAsyncMPClient, "launch", launch)
    with socket.socket() as listener:
        assert run(model_config(), ServerConfig(), listener) == code
    assert capsys.readouterr().err == "vllm-obs: the model cannot be used\n"
