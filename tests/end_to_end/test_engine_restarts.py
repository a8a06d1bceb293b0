"""Engines of a real server die, by a signal or of a request, and others take their place: nothing hangs."""

import contextlib
import http.client
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from either_model import Flags, either_model
from observed_server import ObservedServer, Samples, await_that, total
from process_watch import gone
from serving import Server

from vllm_obs.telemetry.incident_reader import read_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf

TEXT = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "temperature": 0.0}
SHORT = {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True}
NUM_STREAMS = 20
RELOAD_SECONDS = 15.0
"""Three times what is promised beyond the time of the first load."""
LIGHT = ("--max-model-len", "2048", "--kv-cache-memory-bytes", str(1 << 29))
POISON = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": "scheduler=exit:3@poison"}
"""An engine leaves with code 3 when it is to run a request with that label."""
TWO_STAGES = (*LIGHT, "--pipeline-parallel-size", "2")
STAGES = ("Worker_TP0_PP0", "Worker_TP0_PP1")
SECOND = STAGES[1]


@contextlib.contextmanager
def started(base: Path, *args: str, **env: str) -> Iterator[ObservedServer]:
    """A ready server with a ready Observer, which may end by itself; nothing of it is left."""
    server = Server(*args, env={"VLLM_OBS_RUN_DIR": str(base), **env})
    try:
        server.wait_ready(120)
        with contextlib.closing(ObservedServer(server)) as running:
            yield running
        assert server.leftovers(10) == []
    finally:
        server.close()


class Streams:
    """Open streams, each of which has had an event, and the lines that have come of them."""

    def __init__(self, server: Server, number: int, body: dict[str, Any] = LONG) -> None:
        self.lines: list[list[str]] = [[] for _ in range(number)]
        self.ended_at = [0.0] * number
        self._threads = [
            threading.Thread(target=self._read, args=(server, index, {**body, "stream": True}))
            for index in range(number)
        ]
        for thread in self._threads:
            thread.start()
        await_that(lambda: all(self.lines), 60)

    def _read(self, server: Server, index: int, body: dict[str, Any]) -> None:
        connection = server.connect(60)
        try:
            connection.request("POST", TEXT, json.dumps(body), {"Content-Type": "application/json"})
            with contextlib.suppress(OSError, http.client.HTTPException):  # of a server that was killed itself
                for line in connection.getresponse():
                    if line.strip():
                        self.lines[index].append(line.decode().strip())
        finally:
            self.ended_at[index] = time.monotonic()
            connection.close()

    def join(self) -> list[str]:
        """The last line of each, once all have ended."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        return [lines[-1] for lines in self.lines]


def ask(server: Server, label: str = "", **body: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of a completion."""
    connection = server.connect(60)
    try:
        headers = {"Content-Type": "application/json"} | ({"X-Request-Id": label} if label else {})
        connection.request("POST", TEXT, json.dumps({**SHORT, **body}), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read()), dict(response.getheaders())
    finally:
        connection.close()


def counters(samples: Samples) -> dict[tuple[str, ...], float]:
    """Every sample of the engine's counters and histograms, by name and labels."""
    return {
        (name, *(f"{key}={value}" for key, value in sorted(labels.items()))): value
        for name, found in samples.items()
        if name.endswith(("_total", "_count", "_sum", "_bucket"))
        for labels, value in found
    }


def engine_of(server: Server) -> psutil.Process:
    """The engine that is there now, once there is one."""

    def find() -> psutil.Process | None:
        with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
            return server.child("vllm-obs::EngineCore")
        return None

    engine = await_that(find, 60)
    assert isinstance(engine, psutil.Process)
    return engine


def await_ready(server: Server, seconds: float = 60.0) -> None:
    """Return once requests are let in again."""
    await_that(lambda: server.request("GET", "/readyz")[0] == 200, seconds)
    server.family += psutil.Process(server.process.pid).children(recursive=True)


def roles(server: Server) -> set[str]:
    """What the processes of its tree are called, less the root; all who are here now must be gone at the end."""
    server.family = psutil.Process(server.process.pid).children(recursive=True)
    return {" ".join(process.cmdline()).strip().removeprefix("vllm-obs::") for process in server.family}


def named_memory(server: Server) -> list[str]:
    """Shared memory of the tree that has a name, which would stay when its last process is killed."""
    tree = [psutil.Process(server.process.pid), *server.family]
    return [area.path for process in tree for area in process.memory_maps() if area.path.startswith("/dev/shm/")]


def sockets_in(base: Path) -> set[Path]:
    return {path for path in base.rglob("*") if path.is_socket()}


def incidents(base: Path) -> list[dict[str, Any]]:
    """Everything about the incidents of the only run, oldest first."""
    (run,) = (path for path in base.iterdir() if path.is_dir())
    shelf = IncidentShelf(run)
    found = [read_incident(shelf, name) for name in shelf.names()]
    return [content for content in found if content is not None]


def test_a_killed_engine_ends_its_streams_and_another_serves(base: Path) -> None:
    """P1, P2 and P36."""
    with started(base, *LIGHT) as watched:
        server = watched.server
        streams = Streams(server, NUM_STREAMS)
        engine = engine_of(server)
        before, sockets = watched.samples(), sockets_in(base)
        assert total(before, "vllm:num_requests_running") == NUM_STREAMS
        assert roles(server) == {"EngineCore_DP0", "Observer"}
        assert named_memory(server) == []
        killed_at = time.monotonic()
        engine.kill()
        last = streams.join()
        assert max(streams.ended_at) - killed_at < 3 * 2.0
        for line in last:
            assert line.startswith('data: {"error":')
            assert '"reason":"engine_dead"' in line
            assert "EngineCore_DP0 was killed by SIGKILL" in line
        status, ready = server.request("GET", "/readyz")
        assert (status, ready["error"]["reason"]) == (503, "restarting")
        statuses = [server.headers(path) for path in ("/livez", "/startupz", "/health", "/readyz")]
        assert [status for status, _ in statuses] == [200, 200, 503, 503]
        assert ["retry-after" in headers for _, headers in statuses] == [False, False, True, True]
        status, body, headers = ask(server)
        assert (status, body["error"]["reason"]) == (503, "restarting")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert gone(engine.pid, 3 * 3.0)
        check_nobody_is_shown(watched, before)
        assert watched.inspect("state")["health"]["word"] == "restarting"
        time.sleep(1.0)
        between = watched.samples()
        check_nobody_is_shown(watched, before)
        await_ready(server, RELOAD_SECONDS + 3 * 5.0)
        assert ask(server, **LONG | {"max_tokens": 4})[0] == 200, "a kill is nobody's fault"
        check_counters(watched, between, "EngineCore_DP0 was killed by SIGKILL", NUM_STREAMS)
        assert sockets_in(base) == sockets
        (content,) = await_that(lambda: incidents(base), 20)
        incident = content["incident"]
        assert (incident["cause"], incident["culprit"]["pid"]) == ("killed", engine.pid)
        assert (incident["requests"]["num_open"], len(content["open_requests"])) == (NUM_STREAMS, NUM_STREAMS)
        assert incident["consequences"] == []
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def check_nobody_is_shown(watched: ObservedServer, before: Samples) -> Samples:
    """P36: the gauges show nothing of an engine that died, no counter has fallen, and all sums agree."""
    samples = watched.samples()
    earlier, later = counters(before), counters(samples)
    fallen = {key: (value, later[key]) for key, value in earlier.items() if later[key] < value}
    assert fallen == {}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert total(samples, f"vllm:{name}") == 0, name
    assert watched.broken_laws() == []
    return samples


def check_counters(watched: ObservedServer, before: Samples, cause: str, num_open: int) -> None:
    """After the restart nothing hangs on the dead engine, and it is told of."""
    await_that(lambda: total(watched.samples(), "vllm_obs_engine_restarts_total") == 1, 20)
    samples = check_nobody_is_shown(watched, before)
    assert total(samples, "vllm:request_success_total", finished_reason="error") == num_open
    state = watched.inspect("state")
    (restart,) = state["restarts"]
    assert restart["generation"] == 1
    assert restart["cause"].endswith(cause)
    assert restart["num_open"] == num_open
    assert state["health"]["word"] in ("idle", "ok")


def check_poison(server: Server, num_requests: int) -> None:
    """Each is refused when it comes again; the last one is the end."""
    for number in range(num_requests):
        poison = {"prompt": f"poison number {number}", "label": "poison"}
        status, body, _ = ask(server, **poison)
        assert (status, body["error"]["reason"]) == (500, "engine_dead")
        if number == num_requests - 1:
            return
        await_ready(server)
        status, body, _ = ask(server, **poison)
        assert (status, body["error"]["reason"]) == (400, "poison_request")
        assert ask(server)[0] == 200


def check_spent(server: Server) -> None:
    assert server.process.wait(30) == 70
    assert re.fullmatch(
        r"vllm-obs: the engine died 4 times in \d+ s, and --engine-restarts allows 3 restarts in 60 s of serving; "
        r"the last time: EngineCore_DP0 exited with code 3",
        server.log.read_text().splitlines()[-1],
    )


@either_model
def test_four_poison_requests_in_a_minute_are_the_end(base: Path, flags: Flags) -> None:
    """P12."""
    with started(base, *LIGHT, *flags, **POISON) as watched:
        begun_at = time.monotonic()
        check_poison(watched.server, 4)
        check_spent(watched.server)
        assert time.monotonic() - begun_at < 60


def test_a_killed_worker_of_two_is_named_and_nothing_is_left_of_its_engine(base: Path) -> None:
    """P3, and of it P2."""
    with started(base, *TWO_STAGES) as watched:
        server = watched.server
        streams = Streams(server, 4)
        before, sockets = watched.samples(), sockets_in(base)
        assert roles(server) == {"EngineCore_DP0", *STAGES, "Observer"}
        assert named_memory(server) == []
        first, second = (server.child(stage) for stage in STAGES)
        engine = engine_of(server)
        killed_at = time.monotonic()
        second.kill()
        for line in streams.join():
            assert line.startswith('data: {"error":')
            assert '"reason":"engine_dead"' in line
            assert f"{SECOND} was killed by SIGKILL" in line
        assert max(streams.ended_at) - killed_at < 3 * 2.0
        assert all(gone(one.pid, 9) for one in (first, second, engine))
        await_ready(server)
        assert ask(server)[0] == 200
        assert server.child(SECOND).pid != second.pid
        check_counters(watched, before, f"{SECOND} was killed by SIGKILL", 4)
        assert sockets_in(base) == sockets
        ranks = [server.child(stage) for stage in STAGES]
        engine_of(server).kill()
        assert all(gone(rank.pid, 3 * 3.0) for rank in ranks), "no worker outlives its engine"
        await_that(lambda: server.request("GET", "/readyz")[0] == 503, 5)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0, "a stop while another engine starts cuts nothing off"
    (run,) = (path for path in base.iterdir() if path.is_dir())
    assert list(run.glob("*.sock")) == []
    exits = [line for line in (run / "APIServer_0.log").read_text().splitlines() if "the engine died" in line]
    assert f"exited with code 70: {SECOND} was killed by SIGKILL" in exits[0]


@either_model
@pytest.mark.parametrize("site", ["engine_input", "engine_output", "engine_step"])
def test_an_engine_thread_that_raises_is_never_ok_but_dead(base: Path, site: str, flags: Flags) -> None:
    """P5: with restarts spent the process ends; nobody is answered 200 by a dead engine."""
    faults = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": f"{site}=raise"}
    with started(base, *LIGHT, *flags, "--engine-restarts", "0", **faults) as watched:
        server = watched.server
        asked_at = time.monotonic()
        status, body, _ = ask(server)
        assert (status, body["error"]["reason"]) == (500, "engine_dead")
        while server.process.poll() is None:  # from here on nobody is told that it is ready
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert server.request("GET", "/readyz")[0] == 503
            assert time.monotonic() - asked_at < 20
        assert server.process.wait(20) == 70
        assert time.monotonic() - asked_at < 3 * 1.0
        assert re.search(
            r"^vllm-obs: the engine died: EngineCore_DP0 exited with code 70", server.log.read_text(), re.M
        )


@either_model
def test_a_killed_api_server_takes_all_along_and_its_port_is_free_at_once(base: Path, flags: Flags) -> None:
    """P6."""
    with started(base, *TWO_STAGES, *flags) as watched:
        server = watched.server
        Streams(server, 2)
        assert roles(server) == {"EngineCore_DP0", *STAGES, "Observer"}
        assert named_memory(server) == []
        server.process.kill()
        server.process.wait(10)
        assert server.leftovers(3 * 2.0) == []
        (run,) = (path for path in base.iterdir() if path.is_dir())
        assert [path for path in base.rglob("*") if not (path.is_file() or path.is_dir())] == []
        assert (run / "EngineCore_DP0.ring").exists()
        (content,) = incidents(base)
        assert (content["incident"]["cause"], content["incident"]["culprit"]["role"]) == ("killed", "APIServer_0")
        again = Server(*TWO_STAGES, *flags, env={"VLLM_OBS_RUN_DIR": str(base)}, port=server.port)
        try:
            again.wait_ready(60)
            assert ask(again)[0] == 200
            assert again.stop() == 0
        finally:
            again.close()
