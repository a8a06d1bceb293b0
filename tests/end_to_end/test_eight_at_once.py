"""Servers started at once on one machine, eight of them or fewer: all come up, and none answers for another."""

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from bad_start import assert_one_line, serve
from observed_server import await_that
from serving import Server

FEW, EIGHT = 4, 8
LIGHT = ("--max-model-len", "2048", "--kv-cache-memory-bytes", str(1 << 28))
MODELS = {FEW: ("--load-format", "synthetic"), EIGHT: LIGHT}
"""Few serve no model: to load it so often at once would take a minute of the tests that everybody waits for."""
START_SECONDS = 120.0


class Fleet(NamedTuple):
    """The servers, and where their runs are."""

    servers: list[Server]
    base: Path


class AnyPort(Server):
    """A server that takes a free port and prints it."""

    def __init__(self, *args: str, env: dict[str, str]) -> None:
        super().__init__(*args, "--port", "0", env=env)

    def find_port(self) -> None:
        """Learn the port from what it printed, once it is ready."""
        pattern = re.compile(r"^Ready in .*http://127\.0\.0\.1:(\d+)", re.MULTILINE)
        found = await_that(lambda: pattern.search(self.log.read_text()), START_SECONDS)
        self.port = int(found[1])
        self.wait_ready()


@contextlib.contextmanager
def started_at_once(num_servers: int) -> Iterator[Fleet]:
    """All of them, ready."""
    with tempfile.TemporaryDirectory(prefix="vo-") as base, contextlib.ExitStack() as stack:
        env = {"VLLM_OBS_RUN_DIR": base}
        servers = []
        for number in range(num_servers):
            words = (*MODELS[num_servers], "--served-model-name", f"model-{number}", "--host", "127.0.0.1")
            servers.append(AnyPort(*words, env=env))
            stack.callback(servers[-1].close)
        for server in servers:
            server.find_port()
        yield Fleet(servers, Path(base))


@pytest.mark.parametrize("num_servers", [FEW, pytest.param(EIGHT, marks=pytest.mark.long)])
def test_servers_started_at_once_do_not_meet(num_servers: int) -> None:
    with started_at_once(num_servers) as fleet:
        assert_own_places(fleet)
        assert_own_names(fleet)
        assert_own_metrics(fleet)
        assert_port_taken(fleet)
        assert_deaths_apart(fleet)


def assert_own_places(fleet: Fleet) -> None:
    """Each has a port, a directory and an inspector of its own."""
    num_servers = len(fleet.servers)
    assert len({server.port for server in fleet.servers}) == num_servers
    runs = [path for path in fleet.base.iterdir() if path.is_dir()]
    assert len(runs) == num_servers
    pids = {int(path.name.split("-")[2]) for path in runs}
    assert pids == {server.process.pid for server in fleet.servers}
    inspectors = [await_that(lambda s=server: inspector_of(s), START_SECONDS) for server in fleet.servers]
    assert len(set(inspectors)) == num_servers


def inspector_of(server: Server) -> str | None:
    found = re.search(r"^Inspector: (\S+)$", server.log.read_text(), re.MULTILINE)
    return None if found is None else found[1]


def assert_own_names(fleet: Fleet) -> None:
    """Each answers with its own model's name, and knows no other."""
    num_servers = len(fleet.servers)

    def ask(number: int) -> tuple[list[str], str, int, int]:
        server = fleet.servers[number]
        names = [model["id"] for model in server.request("GET", "/v1/models")[1]["data"]]
        body = {"prompt": f"For number {number}", "max_tokens": 8}
        _, own = server.request("POST", "/v1/completions", {**body, "model": f"model-{number}"})
        other = f"model-{(number + 1) % num_servers}"
        status, _ = server.request("POST", "/v1/completions", {**body, "model": other})
        return names, own["model"], own["usage"]["completion_tokens"], status

    with ThreadPoolExecutor(num_servers) as pool:
        found = list(pool.map(ask, range(num_servers)))
    assert found == [([f"model-{number}"], f"model-{number}", 8, 404) for number in range(num_servers)]


def assert_own_metrics(fleet: Fleet) -> None:
    """No series of another's model."""
    for number, server in enumerate(fleet.servers):
        text = await_that(lambda s=server: scraped(s), START_SECONDS)
        assert set(re.findall(r'model_name="([^"]+)"', text)) == {f"model-{number}"}


def scraped(server: Server) -> str:
    status, text = server.request("GET", "/metrics")
    return str(text) if status == 200 else ""


def assert_port_taken(fleet: Fleet) -> None:
    """One more start at the port of the first is one line."""
    port = str(fleet.servers[0].port)
    done = serve("--load-format", "synthetic", "--host", "127.0.0.1", "--port", port)
    assert_one_line(done, f"port {port} on 127.0.0.1 is in use; choose another with --port")


def assert_deaths_apart(fleet: Fleet) -> None:
    """One is killed and the others serve on; they end as asked and leave nothing."""
    first, *others = fleet.servers
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(10)
    assert first.leftovers(9) == []
    for number, server in enumerate(others, 1):
        body = {"prompt": "Still there?", "max_tokens": 4, "model": f"model-{number}"}
        assert server.request("POST", "/v1/completions", body)[0] == 200
    with ThreadPoolExecutor(len(others)) as pool:
        assert list(pool.map(lambda server: server.stop(), others)) == [0] * len(others)
    assert [server.leftovers(9) for server in others] == [[]] * len(others)
    assert [path for path in fleet.base.rglob("*") if not (path.is_file() or path.is_dir())] == []
    assert not [process for process in psutil.process_iter() if has_run_dir(process, fleet.base)]


def has_run_dir(process: psutil.Process, base: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("VLLM_OBS_RUN_DIR") == str(base)
    return False
