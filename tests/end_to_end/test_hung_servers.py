"""Of several API servers one that hangs is replaced, and their launcher is named while it is stopped."""

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from either_model import EITHER_MODEL
from observed_server import ObservedServer, await_that, total
from serving import serving

from vllm_obs.server.api_server_watch import STALLS_A_KILL

STALL_SECONDS = 1.0
NUM_FIRST = 8
"""More than may still count as open at either server, though they are closed: the launcher hears of that later."""
LOOK_SECONDS = 1.0
"""How long after the limit it may be until somebody looks."""
LIGHT = ("--max-model-len", "4096", "--kv-cache-memory-bytes", str(1 << 29))


@pytest.fixture(scope="module", params=EITHER_MODEL)
def server(request: pytest.FixtureRequest) -> Iterator[ObservedServer]:
    several = ("--api-server-count", "2", "--stall-timeout", f"{STALL_SECONDS:g}")
    with serving(*LIGHT, *several, *request.param) as server:
        running = ObservedServer(server)
        yield running
        running.close()
        server.family = psutil.Process(server.process.pid).children(recursive=True)


def stalls(server: ObservedServer) -> list[dict[str, Any]]:
    return list(server.inspect("state")["stalls"]["current"])


def asked(connection: http.client.HTTPConnection) -> int:
    """What /readyz is answered over it."""
    connection.request("GET", "/readyz")
    response = connection.getresponse()
    response.read()
    return response.status


def test_one_that_hangs_is_named_then_killed_and_another_takes_its_place(server: ObservedServer) -> None:
    victim = server.server.child("APIServer_1")
    since = time.monotonic()
    os.kill(victim.pid, signal.SIGSTOP)
    await_that(lambda: victim.status() == psutil.STATUS_STOPPED)  # until then it may still take a connection
    with contextlib.ExitStack() as first:
        for _ in range(NUM_FIRST):
            first.enter_context(socket.create_connection(("127.0.0.1", server.server.port)))
        (stall,) = await_that(lambda: stalls(server))
        assert (stall["engine"], stall["role"], stall["pid"]) == ("", "APIServer_1", victim.pid)
        # Some of the first were for the victim, which has not taken them and gets no more.
        assert server.complete(prompt="Hi", max_tokens=2)["choices"], "the other serves"
        await_that(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE)
        assert time.monotonic() - since < 3 * (STALLS_A_KILL * STALL_SECONDS + LOOK_SECONDS)

    def is_back() -> bool:
        with contextlib.suppress(AssertionError):
            return server.server.child("APIServer_1").pid != victim.pid
        return False

    await_that(is_back)
    await_that(lambda: not stalls(server))
    said = server.server.log.read_text()
    assert "APIServer_1 has not answered for" in said
    assert "APIServer_1 was killed by SIGKILL; what it served is cut off, and it is started again" in said


def test_a_stopped_launcher_is_named_and_new_connections_wait_for_it(server: ObservedServer) -> None:
    launcher = server.server.process.pid
    known = server.server.connect(30)
    assert asked(known) == 200
    os.kill(launcher, signal.SIGSTOP)
    try:
        since = time.monotonic()
        (stall,) = await_that(lambda: [each for each in stalls(server) if each["role"] == "Launcher"])
        assert time.monotonic() - since < 3 * (STALL_SECONDS + LOOK_SECONDS)
        assert stall["says"].startswith("The launcher hands out no new connections, and starts nothing again")
        assert "is stopped by a signal, and answers nobody." in stall["says"]
        assert server.inspect("state")["health"]["word"] == "stalled"
        with contextlib.closing(http.client.HTTPConnection(server.server.inspector, timeout=30)) as inspector:
            assert asked(inspector) == 503
        assert asked(known) == 200, "whoever is connected is served"
        asking = threading.Thread(target=server.complete, kwargs={"prompt": "Hi", "max_tokens": 2})
        asking.start()
    finally:
        os.kill(launcher, signal.SIGCONT)
        known.close()
    asking.join(30)
    assert not asking.is_alive()
    await_that(lambda: not stalls(server))
    assert total(server.samples(), "vllm_obs_stalls_total", role="launcher") == 1
    assert server.server.request("GET", "/readyz")[0] == 200
