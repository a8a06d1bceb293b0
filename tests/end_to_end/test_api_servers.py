"""Several API servers on one port, and the launcher that owns them: who dies takes its own streams only."""

import contextlib
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from either_model import EITHER_MODEL, Flags
from process_watch import gone
from serving import Server, free_port

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.watchdog_headers import RunHeaders

TEXT = "/v1/completions"
NUM_SERVERS = 2
LIGHT = ("--max-model-len", "4096", "--kv-cache-memory-bytes", str(1 << 29))
LONG = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
RESTART_SECONDS = 20.0
"""An API server imports its libraries again, on a busy machine."""

Samples = dict[str, float]


def started(*args: str, run_dir: Path | None = None) -> Server:
    """A server of which every part is ready, and says so."""
    env = {} if run_dir is None else {"VLLM_OBS_RUN_DIR": str(run_dir)}
    server = Server(*args, env=env)
    try:
        server.wait_ready()
        server.wait_observed()
        server.family = psutil.Process(server.process.pid).children(recursive=True)
    except BaseException:
        server.close()
        raise
    return server


def eventually(is_so: Callable[[], Any], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def processes(server: Server) -> dict[str, psutil.Process]:
    """The tree's processes by what they are called."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[" ".join(process.cmdline()).strip().removeprefix("vllm-obs::")] = process
    return found


def samples(server: Server) -> Samples:
    """All samples of /metrics by name and labels, from whichever server answers."""
    found = (re.fullmatch(r"(\S+(?:\{.*\})?) (\S+)", line) for line in server.exposition().splitlines())
    return {match[1]: float(match[2]) for match in found if match}


def total(found: Samples, name: str, *labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(
        value
        for key, value in found.items()
        if key.partition("{")[0] == name and all(label in key for label in labels)
    )


class Streams:
    """Streams that are read by threads; how each ended is in `ends` by the process that served it."""

    def __init__(self, server: Server, number: int) -> None:
        self.num_events = [0] * number
        self.last: list[Any] = [None] * number
        self._server = server
        self._is_told_to_leave = False
        self._threads = [threading.Thread(target=self._read, args=(index,)) for index in range(number)]
        for thread in self._threads:
            thread.start()
        eventually(lambda: all(self.num_events))

    def _read(self, index: int) -> None:
        with contextlib.suppress(OSError):
            stream = self._server.stream(TEXT, LONG)
            for event in stream:
                self.num_events[index] += 1
                self.last[index] = event
                if self._is_told_to_leave:
                    stream.close()
                    return

    def num_open(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def leave(self) -> None:
        """Disconnect all."""
        self._is_told_to_leave = True
        self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def errors(self) -> Counter[str]:
        """How the streams ended that were told of an error."""
        return Counter(last["error"]["reason"] for last in self.last if "error" in last)


def connections_by_server(server: Server) -> dict[str, int]:
    """How many clients each API server has."""
    found = processes(server)
    return {
        name: sum(
            connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == server.port
            for connection in process.net_connections("tcp")
        )
        for name, process in found.items()
        if name.startswith("APIServer")
    }


def num_running(server: Server) -> float:
    return total(samples(server), "vllm:num_requests_running")


@pytest.fixture(
    scope="module",
    params=EITHER_MODEL,
)
def flags(request: pytest.FixtureRequest) -> Flags:
    return (*LIGHT, *request.param)


@pytest.fixture(scope="module")
def served(flags: Flags) -> Iterator[Server]:
    server = started(*flags, "--api-server-count", str(NUM_SERVERS))
    yield server
    try:
        server.family = psutil.Process(server.process.pid).children(recursive=True)
        assert server.stop() == 0
        assert server.leftovers() == []
    finally:
        server.close()


def test_the_launcher_is_the_root_and_serves_nothing_itself(served: Server) -> None:
    assert processes(served).keys() == {"APIServer_0", "APIServer_1", "EngineCore_DP0", "Observer"}
    root = psutil.Process(served.process.pid)
    assert " ".join(root.cmdline()).strip() == "vllm-obs::Launcher"
    loaded = {Path(area.path).name.partition(".")[0] for area in root.memory_maps()}
    assert not {"libtorch_cpu", "_pydantic_core", "uvloop", "loop"} & loaded
    assert connections_by_server(served).keys() == {"APIServer_0", "APIServer_1"}
    log = served.log.read_text()
    assert [log.count(words) for words in ("Ready in", "Inspector: ", "Engine started")] == [1, 1, 1]


def settle(served: Server) -> None:
    """Return when nobody is connected and the launcher has heard of it."""
    eventually(lambda: not any(connections_by_server(served).values()))
    time.sleep(1.0)


def test_streams_are_spread_and_an_abort_works_on_any_of_them(served: Server) -> None:
    settle(served)
    streams = Streams(served, 8)
    try:
        by_server = connections_by_server(served)
        # The launcher knows of connections that have ended by what busy servers report, and may be behind by one.
        assert max(by_server.values()) - min(by_server.values()) <= 2, by_server
        assert num_running(served) == 8
    finally:
        streams.leave()
    eventually(lambda: num_running(served) == 0, 3.0)


def test_probes_and_metrics_are_the_same_on_any_of_them(served: Server) -> None:
    settle(served)
    held = [served.connect() for _ in range(NUM_SERVERS)]
    try:
        for connection in held:
            connection.connect()
        eventually(lambda: min(connections_by_server(served).values()) >= 1)
        for connection in held:
            for path in ("health", "ping", "livez", "readyz", "startupz"):
                connection.request("GET", f"/{path}")
                response = connection.getresponse()
                response.read()
                assert response.status == 200, path
    finally:
        for connection in held:
            connection.close()
    counters = [
        {key: value for key, value in samples(served).items() if key.startswith("vllm:request_success")}
        for _ in range(2 * NUM_SERVERS)
    ]
    assert counters.count(counters[0]) == len(counters)


def test_a_killed_api_server_takes_its_own_streams_only_and_comes_back(served: Server) -> None:
    before = samples(served)
    settle(served)
    streams = Streams(served, 6)
    victim = processes(served)["APIServer_1"]
    num_lost = connections_by_server(served)["APIServer_1"]
    assert 0 < num_lost < 6
    known = {process.pid for process in processes(served).values()}
    victim.kill()
    eventually(lambda: streams.num_open() == 6 - num_lost, 3 * 2.0)
    eventually(lambda: children_of(served) - known, 3 * 2.0)
    eventually(lambda: num_running(served) == 6 - num_lost, 3.0)
    assert served.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 2})[0] == 200, "the other serves"
    eventually(lambda: "APIServer_1" in processes(served), RESTART_SECONDS)
    assert processes(served)["APIServer_1"].pid != victim.pid
    ask_the_new_one(served)
    assert streams.num_open() == 6 - num_lost, "the others' streams go on"
    streams.leave()
    eventually(lambda: num_running(served) == 0, 3.0)
    after = samples(served)
    ended = "vllm:request_success_total"
    errors = total(after, ended, 'finished_reason="error"') - total(before, ended, 'finished_reason="error"')
    assert errors == num_lost
    assert total(after, "vllm_obs_invariant_violations_total") == 0


def children_of(server: Server) -> set[int]:
    return {process.pid for process in psutil.Process(server.process.pid).children()}


def ask_the_new_one(server: Server) -> None:
    """Requests until one was answered by the API server that came back; none fails meanwhile."""

    def is_answered() -> bool:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        try:
            reply = server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 3, "logprobs": 0})
            assert reply[0] == 200, reply
            return connections_by_server(server).get("APIServer_1", 0) > 0
        finally:
            for connection in held:
                connection.close()

    eventually(is_answered, RESTART_SECONDS)


def test_a_killed_engine_is_replaced_for_every_server(served: Server) -> None:
    before = samples(served)
    streams = Streams(served, 4)
    assert min(connections_by_server(served).values()) >= 1
    processes(served)["EngineCore_DP0"].kill()
    streams.join()
    assert streams.errors() == {"engine_dead": 4}
    assert served.request("GET", "/livez")[0] == 200
    for _ in range(2 * NUM_SERVERS):
        eventually(lambda: served.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 2})[0] == 200)
    after = samples(served)
    name = "vllm_obs_engine_restarts_total"
    assert total(after, name) == total(before, name) + 1
    assert num_running(served) == 0
    assert total(after, "vllm_obs_invariant_violations_total") == 0


def test_sigterm_lets_all_servers_finish_what_they_have(flags: Flags) -> None:
    server = started(*flags, "--api-server-count", "2")
    try:
        with ThreadPoolExecutor(6) as pool:
            body = {"prompt": "Once", "max_tokens": 150, "ignore_eos": True}
            replies = [pool.submit(server.request, "POST", TEXT, body) for _ in range(6)]
            eventually(lambda: num_running(server) == 6)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: all(refuses(server) for _ in range(4)))  # each hears of it for itself
            assert [reply.result()[0] for reply in replies] == [200] * 6
        assert server.process.wait(20) == 0
        assert server.leftovers() == []
    finally:
        server.close()


def refuses(server: Server) -> bool:
    """Whether the server that is asked now is not ready, and the one that is sent a request lets it not in."""
    status, reply = server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 1})
    assert status == 200 or reply["error"]["reason"] == "shutting_down"
    return status == server.request("GET", "/readyz")[0] == 503


def test_streams_longer_than_the_drain_end_with_an_error_and_exit_1(flags: Flags) -> None:
    server = started(*flags, "--api-server-count", "2", "--shutdown-timeout", "1")
    try:
        streams = Streams(server, 4)
        server.process.send_signal(signal.SIGTERM)
        streams.join()
        assert streams.errors() == {"shutting_down": 4}
        assert server.process.wait(20) == 1
        assert server.leftovers() == []
    finally:
        server.close()


def test_nobody_is_let_in_before_all_are_ready_and_an_engine_that_dies_by_then_ends_the_start(
    base: Path, flags: Flags
) -> None:
    server = Server(*flags, "--api-server-count", "2", env={"VLLM_OBS_RUN_DIR": str(base)})
    try:
        eventually(lambda: "APIServer_1" in processes(server))
        late = processes(server)["APIServer_1"]
        late.suspend()
        eventually(lambda: is_serving(base, "EngineCore_DP0"))
        eventually(lambda: is_answered(server))
        until = time.monotonic() + 1.0  # by when the other could have let requests in
        while time.monotonic() < until:
            for path in ("/readyz", "/startupz", "/health"):
                status, body = server.request("GET", path)
                assert (status, body["error"]["reason"]) == (503, "not_ready")
        server.family = psutil.Process(server.process.pid).children(recursive=True)
        processes(server)["EngineCore_DP0"].kill()
        assert server.process.wait(3 * 1.0 + 2.0) == 70
        assert server.leftovers() == []
        last = server.log.read_text().splitlines()[-1]
        assert last == "vllm-obs: EngineCore_DP0 was killed by SIGKILL before all was ready"
    finally:
        server.close()


def is_answered(server: Server) -> bool:
    """Whether somebody takes connections."""
    with contextlib.suppress(OSError):
        return bool(server.request("GET", "/livez")[0])
    return False


def is_serving(base: Path, role: str) -> bool:
    """Whether that process of the only run waits for work, by the header of its ring."""
    for run in base.iterdir():
        with contextlib.closing(RunHeaders(run)) as headers:
            if any(look.role == role and look.activity is Activity.WAITING for look in headers.look()):
                return True
    return False


def test_a_killed_launcher_leaves_nothing_and_frees_the_port(tmp_path: Path, base: Path, flags: Flags) -> None:
    shared_before = {path.name for path in Path("/dev/shm").iterdir()}
    server = started(*flags, "--api-server-count", "2", run_dir=base)
    try:
        streams = Streams(server, 2)
        server.process.kill()
        streams.join()
        for process in server.family:
            assert gone(process.pid, 3 * 2.0), process
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", server.port))
        assert [path for path in base.rglob("*") if not (path.is_file() or path.is_dir())] == []
        left = {path.name for path in Path("/dev/shm").iterdir()} - shared_before
        assert not [name for name in left if "vllm" in name]
    finally:
        server.close()


def test_a_bad_model_is_told_once_and_ends_with_78(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "nowhere"), "--api-server-count", "2", port=free_port())
    try:
        assert server.process.wait(60) == 78
        assert len(server.log.read_text().splitlines()) == 1
    finally:
        server.close()


def counted(*args: str) -> tuple[dict[str, Counter[str]], Samples]:
    """Of 200 requests: sequences and tokens by how they ended, by their replies and by the metrics."""
    server = started(*LIGHT, "--load-format", "synthetic", "--no-enable-prefix-caching", *args)
    try:
        with ThreadPoolExecutor(32) as pool:
            replies = list(pool.map(lambda index: server.request("POST", TEXT, mixed(index)), range(200)))
        assert {status for status, _ in replies} == {200}
        found = samples(server)
        assert server.stop() == 0
        assert server.leftovers() == []
    finally:
        server.close()
    told: dict[str, Counter[str]] = {"sequences": Counter(), "tokens": Counter(), "prompt": Counter()}
    for _, reply in replies:
        for choice in reply["choices"]:
            told["sequences"][choice["finish_reason"]] += 1
            told["tokens"][choice["finish_reason"]] += len(choice["token_ids"])
        told["prompt"]["all"] += reply["usage"]["prompt_tokens"]
    return told, found


def mixed(index: int) -> dict[str, Any]:
    """One of the requests: some end at a stop token, some at their length."""
    words = list(range(300, 312))
    return {
        "prompt": [300 + index % 97] * (1 + 7 * index % 150),
        "max_tokens": 1 + index % 24,
        "n": 1 + index % 2,
        "seed": index,
        "allowed_token_ids": words,
        "stop_token_ids": words[:1],
        "return_token_ids": True,
    }


def test_four_servers_and_two_engines_count_what_one_of_each_counts() -> None:
    told_of_one, of_one = counted()
    told, of_many = counted("--api-server-count", "4", "--data-parallel-size", "2")
    assert told == told_of_one
    assert told["sequences"].keys() == {"stop", "length"}
    for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"):
        assert total(of_many, name) == total(of_one, name), name
    for reason, number in told["sequences"].items():
        label = f'finished_reason="{reason}"'
        assert total(of_many, "vllm:request_success_total", label) == number
    assert total(of_many, "vllm:generation_tokens_total") == sum(told["tokens"].values())
    assert total(of_many, "vllm:prompt_tokens_total") > 0
    assert all(total(of_many, "vllm:request_success_total", f'engine="{engine}"') > 0 for engine in (0, 1))
