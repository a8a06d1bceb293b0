"""`vllm-obs demo` as a user runs it: alive soon, stopped by Ctrl-C, and nothing of it left."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ends_with_pytest import ends_with_pytest
from serving import free_port

from vllm_obs.cli.demo import LOAD_TITLE

PROMISED_SECONDS = 20.0
END_SECONDS = 15.0


class Demo:
    """A running demo and its tree."""

    def __init__(self, run_base: Path, *args: str) -> None:
        self.port, self.inspect_port = free_port(), free_port()
        self.log = run_base / "demo.log"
        self.started_at = time.monotonic()
        ports = ["--port", str(self.port), "--inspect-port", str(self.inspect_port)]
        with self.log.open("wb") as log:
            self.process = ends_with_pytest(
                subprocess.Popen(
                    [sys.executable, "-m", "vllm_obs", "demo", *ports, *args],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "VLLM_OBS_RUN_DIR": str(run_base), "HF_HUB_OFFLINE": "1"},
                )
            )
        self.family: list[psutil.Process] = []

    def inspect(self, path: str) -> Any:
        """The inspector's answer, None while there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.inspect_port, timeout=10)
        try:
            connection.request("GET", f"/inspect/{path}")
            reply = connection.getresponse()
            return json.loads(reply.read()) if reply.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def await_that(self, path: str, is_so: Any) -> Any:
        """Ask until the answer is as wanted, within three times what is promised; fail with the log."""
        deadline = self.started_at + 3 * PROMISED_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            answer = self.inspect(path)
            if answer is not None and is_so(answer):
                self.family = psutil.Process(self.process.pid).children(recursive=True)
                return answer
            time.sleep(0.2)
        raise AssertionError(self.log.read_text())

    def titled(self, title: str) -> psutil.Process:
        """The process of the tree with this title."""
        (found,) = [process for process in self.family if title in " ".join(process.cmdline())]
        return found

    def leftovers(self) -> list[psutil.Process]:
        """Processes of the tree that still live after a few seconds."""
        return psutil.wait_procs(self.family, timeout=END_SECONDS)[1]

    def close(self) -> None:
        """End whatever is left, however the test went."""
        for process in [*self.family, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait(10)


@pytest.fixture
def demo(request: pytest.FixtureRequest) -> Iterator[Demo]:
    # A short name: the paths of sockets may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="vo-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        running = Demo(Path(directory), *request.param)
        try:
            yield running
        finally:
            running.close()


def has_finished_requests(answer: Any) -> bool:
    return len(answer["requests"]) >= 3


@pytest.mark.parametrize("demo", [["--regime", "calm", "--seed", "3"]], indirect=True)
def test_it_is_alive_soon_and_ctrl_c_ends_all_of_it(demo: Demo) -> None:
    requests = demo.await_that("requests?state=ended", has_finished_requests)["requests"]
    assert {each["model"] for each in requests} == {"synthetic"}
    state = demo.inspect("state")
    assert state["models"] == ["synthetic"]
    assert state["engines"][0]["blocks"]["num_blocks"] == 512
    processes = demo.inspect("processes")["processes"]
    roles = {process["role"] for process in processes}
    assert {"APIServer_0", "EngineCore_DP0", "Worker_TP0", "Worker_TP1"} <= roles
    assert "Regime calm, for 30 s" in demo.log.read_text()
    assert f"http://127.0.0.1:{demo.port}" in demo.log.read_text()
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(END_SECONDS) == 0
    assert demo.leftovers() == []


@pytest.mark.parametrize("demo", [["--regime", "calm"]], indirect=True)
def test_it_ends_with_an_error_when_its_load_dies(demo: Demo) -> None:
    demo.await_that("requests?state=ended", has_finished_requests)
    demo.titled("Worker_TP1").suspend()
    demo.titled(LOAD_TITLE).kill()
    assert demo.process.wait(END_SECONDS) == 70
    assert "the load ended: DemoLoad was killed by SIGKILL" in demo.log.read_text()
    assert demo.leftovers() == []
