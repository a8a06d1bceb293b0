"""`vllm-obs chat`: what is said, kept, forgotten and shown, and which server is asked."""

import fcntl
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from http_app import socket_server
from talk_server import TalkServer, chat_event

from vllm_obs.cli.chat import Conversation
from vllm_obs.cli.chat_address import DEFAULT_URL, base_url, choice_note
from vllm_obs.cli.chat_screen import Screen
from vllm_obs.cli.chat_server import ChatServer
from vllm_obs.cli.main import main
from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig
from vllm_obs.telemetry.observer_address import write_address

QUIET = ServerConfig(disable_uvicorn_access_log=True)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(tmp_path / "runs"))


def echo(body: dict[str, Any]) -> list[Any]:
    """Two events: what was said last, and how many messages there are."""
    messages = body["messages"]
    return [chat_event(role="assistant"), chat_event(messages[-1]["content"]), chat_event(f"/{len(messages)}")]


@pytest.fixture
def server() -> Iterator[TalkServer]:
    with TalkServer(echo).listening() as server:
        yield server


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_quick_question_gets_its_answer_alone(server: TalkServer, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--url", server.url, "-q", "hi", "--system-prompt", "be kind", "--max-tokens=9", "--temperature", "0"]
    assert main(["chat", *words]) == 0
    assert capsys.readouterr() == ("hi/2\n", "")
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    body = {"model": "talker", "max_tokens": 9, "temperature": 0.0, "messages": messages, "stream": True}
    assert server.asked == [("/v1/chat/completions", "", body)]


def test_what_was_said_goes_along_until_it_is_cleared(
    server: TalkServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "one", "", "two", "/clear", "three", "/exit", "never")
    assert main(["chat", "--url", f"{server.url}/v1/", "--model-name", "other", "--system", "s"]) == 0
    assert capsys.readouterr() == ("one/2\ntwo/4\nthree/2\n", "")
    assert {body["model"] for _, _, body in server.asked} == {"other"}
    assert server.asked[1][2]["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "one/2"},
        {"role": "user", "content": "two"},
    ]


def test_a_message_without_a_reply_is_told_of_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(body: dict[str, Any]) -> list[Any]:
        match body["messages"][-1]["content"]:
            case "refuse":
                return [chat_event("par"), {"error": {"message": "too\nlong"}}]
            case "break":
                return [chat_event("par"), None]
            case "nonsense":
                return ["{"]
        return echo(body)

    with TalkServer(say).listening() as server:
        typed(monkeypatch, "refuse", "break", "nonsense", "hi")
        assert main(["chat", "--url", server.url]) == 1
    assert capsys.readouterr() == (
        "par\npar\nhi/1\n",
        "vllm-obs: too long\n"
        "vllm-obs: the server ended the reply before it was whole\n"
        "vllm-obs: the server sent an event that is not JSON\n",
    )


@pytest.mark.parametrize(
    ("words", "environ", "sent"),
    [
        (["--api-key", "right"], {"VLLM_API_KEY": "wrong"}, "right"),
        ([], {"VLLM_API_KEY": "right", "OPENAI_API_KEY": "wrong"}, "right"),
        ([], {"OPENAI_API_KEY": "right"}, "right"),
    ],
)
def test_a_key_is_sent(
    words: list[str], environ: dict[str, str], sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with TalkServer(echo, key="right").listening() as server:
        assert main(["chat", "--url", server.url, "-q", "hi", *words]) == 0
        assert server.asked[0][1] == f"Bearer {sent}"


def test_who_is_refused_is_told_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with TalkServer(echo, key="right").listening() as server:
        assert main(["chat", "--url", server.url, "-q", "hi"]) == 1
    assert capsys.readouterr() == ("", "vllm-obs: a valid API key is required\n")
    assert main(["chat", "--url", server.url, "-q", "hi"]) == 1
    told = capsys.readouterr()
    assert told == ("", f"vllm-obs: no server answers at {server.url}/v1: Connection refused\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--url", "ftp://x"],
        ["--url", "localhost:8000"],
        ["--url", "http://[::1"],
        ["--max-tokens", "x"],
        ["--api-key", "k\u00e9y"],
        ["--no-such"],
        ["hello"],
    ],
)
def test_bad_words_end_with_78(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", *words]) == 78
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1


def test_a_unix_socket_is_asked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TalkServer(echo).listening(tmp_path / "s") as server:
        assert main(["chat", "--url", server.url, "-q", "hi"]) == 0
    assert server.asked[0][0] == "/v1/chat/completions"
    assert capsys.readouterr().out == "hi/1\n"


@contextmanager
def held(run: Path, api_address: str) -> Iterator[None]:
    """A run lives whose server has that address."""
    run.mkdir(parents=True)
    write_address(run, "http://127.0.0.1:1", api_address)
    lock_fd = os.open(run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock_fd)


def test_the_newest_server_that_lives_is_found(
    server: TalkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert base_url(None) == DEFAULT_URL
    with held(runs / "1", server.url), held(runs / "2", ""):  # the second is a batch: it has no address
        assert base_url(None) == server.url + "/v1"
        assert main(["chat", "-q", "hi"]) == 0
        assert capsys.readouterr().out == "hi/1\n"
    assert base_url(None) == DEFAULT_URL
    with pytest.raises(ConfigError):
        base_url("unix:relative")


def test_who_named_no_server_is_told_which_one_is_asked(
    server: TalkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, other = tmp_path / "runs", "http://127.0.0.1:9"
    with held(runs / "2", server.url):
        assert main(["chat", "-q", "hi"]) == 0
        assert capsys.readouterr().err == f"asking {server.url}/v1\n"
        assert main(["chat", "-q", "hi", "--url", server.url]) == 0
        assert capsys.readouterr().err == ""
        with held(runs / "1", other):
            assert main(["chat", "-q", "hi"]) == 0
    said = f"asking {server.url}/v1, the newest of 2 servers; --url names another: {other}/v1\n"
    assert capsys.readouterr().err == said
    with held(runs / "3", "http://127.0.0.1:8000"):
        assert choice_note(DEFAULT_URL) == ""


@pytest.mark.parametrize(
    ("is_inspector", "said"),
    [
        (True, "is a replay or an inspector: no model can be asked"),
        (False, "is not an OpenAI server: it has no"),
    ],
)
def test_what_is_no_such_server_is_told_apart(
    is_inspector: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stranger(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Nowhere."""

        def do_GET(self) -> None:
            is_known = is_inspector and self.path == "/inspect/version"
            self.send_response(200 if is_known else 404)
            self.end_headers()
            self.wfile.write(b'{"run": "r"}' if is_known else b'{"detail": "Not Found"}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert main(["chat", "-q", "hi", "--url", f"http://127.0.0.1:{stranger.server_address[1]}"]) == 1
        finally:
            stranger.shutdown()
            thread.join(10)
    assert said in capsys.readouterr().err


class Terminal(io.StringIO):
    """A terminal; at its `interrupt_at`th write somebody types Ctrl-C."""

    def __init__(self, interrupt_at: int = -1) -> None:
        super().__init__()
        self._left = interrupt_at

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return super().write(text)


def test_a_terminal_is_not_steered_by_what_a_model_writes() -> None:
    def say(body: dict[str, Any]) -> list[Any]:
        return [chat_event(reasoning="hm\x1b[2J"), chat_event("a\x1b]0;x\x07\tb\r\n\x9bc")]

    with TalkServer(say).listening() as server:
        terminal = Terminal()
        assert Conversation(ChatServer(server.url + "/v1"), {}).say("hi", Screen(terminal))
        assert terminal.getvalue() == "\x1b[2mhm[2J\x1b[0ma]0;x\tb\nc\n"


def test_ctrl_c_ends_a_reply_and_keeps_what_came() -> None:
    with socket_server(seconds_a_token=0.01, server=QUIET) as running:
        server = ChatServer(f"http://127.0.0.1:{running.port}/v1")
        conversation = Conversation(server, {"model": server.first_model(), "max_tokens": 1000})
        assert not conversation.say("hi", Screen(Terminal(interrupt_at=4)))
        assert conversation.messages[0] == {"role": "user", "content": "hi"}
        assert set(conversation.messages[1]["content"]) == {"."}
        assert 3 <= len(conversation.messages[1]["content"]) < 900
        deadline = time.monotonic() + 10
        while running.served.engine.num_running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(running.served.engine.aborted) == 1


def test_who_stops_reading_is_not_complained_to(server: TalkServer) -> None:
    server.say = lambda body: [chat_event("x" * 1000)] * 1000
    words = [sys.executable, "-m", "vllm_obs", "chat", "--url", server.url, "-q", "hi"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.read(10)
    running.stdout.close()
    assert running.wait(30) == 0
    assert running.stderr.read() == b""
    running.stderr.close()


def test_people_talk_in_a_terminal(server: TalkServer) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "vllm_obs", "chat", "--url", server.url]
    running = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        read_until(ours, f"talker at {server.url}/v1; /clear forgets.*> ")
        os.write(ours, b"hello\n")
        read_until(ours, "hello/1\r\n.*> ")
        os.write(ours, b"\x04")
        assert running.wait(30) == 0
    finally:
        running.kill()
        running.wait(10)
        os.close(ours)


def read_until(fd: int, pattern: str) -> None:
    """Return once the terminal shows it."""
    seen, deadline = b"", time.monotonic() + 30
    while not (found := re.search(pattern.encode(), seen, re.DOTALL)) and time.monotonic() < deadline:
        if select.select([fd], [], [], 0.1)[0]:
            seen += os.read(fd, 4096)
    assert found, seen


def test_the_real_server_is_talked_to(capsys: pytest.CaptureFixture[str]) -> None:
    with socket_server(server=QUIET) as running:
        url = f"http://127.0.0.1:{running.port}"
        assert main(["chat", "--url", url, "-q", "hi", "--max-tokens", "4"]) == 0
        assert capsys.readouterr() == ("....\n", "")
        assert main(["chat", "--url", url, "-q", "hi", "--max-tokens", "0"]) == 1
        assert json.dumps(capsys.readouterr().err).startswith('"vllm-obs: max_tokens')
