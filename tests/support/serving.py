"""Starts the real server as a user would and asks it over HTTP; used by the end-to-end tests."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
from ends_with_pytest import ends_with_pytest

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
DONE = "[DONE]"


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One `vllm-obs serve` process and its tree."""

    def __init__(self, *args: str, env: dict[str, str] | None = None, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.log = Path(tempfile.mkstemp(prefix="vllm-obs-test-", suffix=".log")[1])
        with self.log.open("wb") as stderr:
            self.process = ends_with_pytest(
                subprocess.Popen(
                    [sys.executable, "-m", "vllm_obs", "serve", "--port", str(self.port), *args],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    env={**os.environ, **(env or {})},
                )
            )
        self.family: list[psutil.Process] = []

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Return when /readyz answers 200; fail with the log when it ends or takes longer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log.read_text()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/readyz", seconds=2)[0] == 200:
                    self.family = psutil.Process(self.process.pid).children(recursive=True)
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready within {seconds} s:\n{self.log.read_text()}")

    def wait_observed(self, seconds: float = 60.0) -> None:
        """Return when the Observer answers too: it comes up beside the server, and on a busy machine later."""
        deadline = time.monotonic() + seconds
        while self._said_inspector() is None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"no inspector within {seconds} s:\n{self.log.read_text()}"
            time.sleep(0.05)
        self.exposition(deadline - time.monotonic())

    def exposition(self, seconds: float = 20.0) -> str:
        """What a scrape is answered; where the Observer is late for once (503) another is made.

        Who wants to know whether it is there asks by `request`.
        """
        deadline = time.monotonic() + seconds
        while (answer := self.request("GET", "/metrics"))[0] != 200:
            assert answer[0] == 503, answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
        return str(answer[1])

    @property
    def inspector(self) -> str:
        """HOST:PORT of the inspector, as the server told it first."""
        said = self._said_inspector()
        assert said is not None, self.log.read_text()
        return said[1]

    def _said_inspector(self) -> re.Match[str] | None:
        return re.search(r"^Inspector: http://(\S+)$", self.log.read_text(), re.MULTILINE)

    def connect(self, seconds: float = 120.0) -> http.client.HTTPConnection:
        """A fresh connection to it."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    def request(self, method: str, path: str, body: Any = None, seconds: float = 120.0) -> tuple[int, Any]:
        """(status, decoded body) of one exchange; a body that is not JSON comes back as text."""
        connection = self.connect(seconds)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def headers(self, path: str) -> tuple[int, dict[str, str]]:
        """(status, headers by their names in small letters) of a GET."""
        connection = self.connect(20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status, {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()

    def stream(
        self, path: str, body: dict[str, Any], seconds: float = 120.0
    ) -> Generator[dict[str, Any], None, None]:
        """The events of one streamed reply, `[DONE]` left out."""
        with contextlib.closing(self.data(path, body, seconds)) as lines:
            for line in lines:
                if line != DONE:
                    yield json.loads(line)

    def data(self, path: str, body: dict[str, Any], seconds: float = 120.0) -> Generator[str, None, None]:
        """What is told in one streamed reply, as it is."""
        connection = self.connect(seconds)
        try:
            payload = json.dumps({**body, "stream": True}).encode()
            connection.request("POST", path, payload, {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield line[6:].decode().rstrip("\n")
        finally:
            connection.close()

    def child(self, title: str) -> psutil.Process:
        """The process of the tree whose title contains `title`."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended
                if title in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"no child titled {title}")

    def stop(self, seconds: float = 40.0) -> int:
        """SIGTERM, wait, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def leftovers(self, seconds: float = 3.0) -> list[psutil.Process]:
        """Processes of the tree still alive after at most `seconds`."""
        _, alive = psutil.wait_procs(self.family, timeout=seconds)
        return alive

    def close(self) -> None:
        """End whatever is left, however the test went."""
        for process in [*self.family, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait(10)
        self.log.unlink(missing_ok=True)


@contextlib.contextmanager
def serving(*args: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A ready server for the length of a `with` block; asserts that it leaves no process behind."""
    server = Server(*args, env=env)
    try:
        server.wait_ready()
        yield server
        server.stop()
        assert server.leftovers() == []
    finally:
        server.close()
