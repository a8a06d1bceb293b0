"""`vllm-obs complete`: each text by itself, completed by the server that is asked."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from http_app import socket_server
from talk_server import TalkServer, text_event

from vllm_obs.cli.main import main
from vllm_obs.server.config import ServerConfig


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(tmp_path / "runs"))


def echo(body: dict[str, Any]) -> list[Any]:
    if body["prompt"] == "bad":
        return [text_event("par"), {"error": {"message": "no"}}]
    return [text_event(body["prompt"]), text_event("!")]


def test_a_text_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    with TalkServer(echo).listening() as server:
        assert main(["complete", "--url", server.url, "--quick", "Once upon", "--max_tokens", "7"]) == 0
    assert capsys.readouterr() == ("Once upon!\n", "")
    body = {"model": "talker", "max_tokens": 7, "prompt": "Once upon", "stream": True}
    assert server.asked == [("/v1/completions", "", body)]


def test_each_line_is_a_text_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\n two\n/exit\nthree\n"))
    with TalkServer(echo).listening() as server:
        assert main(["complete", "--url", server.url]) == 0
    assert capsys.readouterr() == ("one!\n two!\n", "")
    assert [body["prompt"] for _, _, body in server.asked] == ["one", " two"]


def test_one_that_fails_is_told_of_and_the_next_one_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("bad\ngood\n"))
    with TalkServer(echo).listening() as server:
        assert main(["complete", "--url", server.url]) == 1
    assert capsys.readouterr() == ("pargood!\n", "vllm-obs: no\n")


def test_the_real_server_completes(capsys: pytest.CaptureFixture[str]) -> None:
    with socket_server(server=ServerConfig(disable_uvicorn_access_log=True)) as running:
        assert (
            main(["complete", "--url", f"http://127.0.0.1:{running.port}", "-q", "hi", "--max-tokens", "4"]) == 0
        )
    assert capsys.readouterr() == ("....\n", "")


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--url", "http://127.0.0.1:9", "-q", "hi"]) == 1
    assert capsys.readouterr() == (
        "",
        "vllm-obs: no server answers at http://127.0.0.1:9/v1: Connection refused\n",
    )
