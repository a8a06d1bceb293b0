"""A real server that may open few files, under many connections that ask nothing: it goes on answering."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
from either_model import EITHER_MODEL
from process_watch import cpu_seconds
from serving import Server, serving

from vllm_obs.engine.open_files import NUM_OWN_FILES
from vllm_obs.server.config import Limits

MAX_FILES = 64
NUM_HALF_OPEN, NUM_IDLE = 200, 300
LIVE_SECONDS = 3 * 30.0
HEAD_SECONDS = 3 * 10.0
HALF_HEAD = b"GET /livez HTTP/1.1\r\nhost: "


@pytest.fixture(scope="module", params=EITHER_MODEL)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with few_files(), serving("--max-model-len", "2048", *request.param) as running:
        pid = running.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, Limits().max_num_connections + NUM_OWN_FILES), "it raises its limit by itself"
        print(f"{psutil.Process(pid).num_fds()} files open before")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))
        yield running


@contextlib.contextmanager
def few_files() -> Iterator[None]:
    """What is started here may open 1,024 files, unless it raises that itself, as in most shells."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def connections(server: Server, number: int, sent: bytes) -> Iterator[list[socket.socket]]:
    made = []
    try:
        for _ in range(number):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=HEAD_SECONDS)
            made.append(connection)
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
        yield made
    finally:
        for connection in made:
            connection.close()


def test_five_hundred_connections_that_ask_nothing_do_not_shut_the_others_out(server: Server) -> None:
    pid = server.process.pid
    with connections(server, NUM_IDLE, b""), connections(server, NUM_HALF_OPEN, HALF_HEAD) as half_open:
        begun_at = time.monotonic()
        assert server.request("GET", "/livez", seconds=LIVE_SECONDS)[0] == 200
        print(f"/livez after {time.monotonic() - begun_at:.3f} s, {psutil.Process(pid).num_fds()} files open")
        assert server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 2})[0] == 200
        before = cpu_seconds(pid)
        time.sleep(1.0)
        assert cpu_seconds(pid) - before < 0.5, "it waits and does not spin"
        assert psutil.Process(pid).num_fds() < MAX_FILES
        begun_at = time.monotonic()
        assert all(is_closed(connection) for connection in half_open)
        print(f"all half-open ones closed after {time.monotonic() - begun_at:.1f} s more")
    for _ in range(50):
        assert server.request("GET", "/livez")[0] == 200
    assert server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 2})[0] == 200


def is_closed(connection: socket.socket) -> bool:
    """Whether it ends by the deadline of heads, with a refusal or without."""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            assert data.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 503 ")), data
    return True
