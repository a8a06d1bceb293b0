"""Real processes that are stopped under load: named in time, not ready meanwhile, and well again afterwards."""

import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from observed_server import ObservedServer, await_that, synthetic, total
from run_rings import only_run

STALL_SECONDS = 2.0
PROMISED_SECONDS = STALL_SECONDS + 1.0
NUM_STREAMS, NUM_TOKENS = 2, 600


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[ObservedServer]:
    """Its worker is a process of its own."""
    flags = ["--stall-timeout", f"{STALL_SECONDS:g}", "--distributed-executor-backend", "mp"]
    with synthetic(*flags, env={"VLLM_OBS_RUN_DIR": str(base)}) as server:
        yield server


class Streams:
    """Streamed replies, read in threads; `num_events` is how many events each had at the end."""

    def __init__(self, server: ObservedServer) -> None:
        self.num_events: list[int] = []
        self._server = server
        self._threads = [threading.Thread(target=self._read) for _ in range(NUM_STREAMS)]

    def __enter__(self) -> "Streams":
        for thread in self._threads:
            thread.start()
        await_that(lambda: self._server.inspect("state")["requests"]["num_running"] == NUM_STREAMS)
        return self

    def __exit__(self, *exception: object) -> None:
        for thread in self._threads:
            thread.join(60)

    def _read(self) -> None:
        body = {"prompt": "Once", "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0}
        events = list(self._server.server.stream("/v1/completions", body))
        assert events[-1]["choices"][0]["finish_reason"] == "length", events[-1]
        self.num_events.append(len(events))


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[float]:
    """The process does nothing meanwhile; since when."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        with contextlib.suppress(ProcessLookupError):  # an Observer that stands still is replaced
            os.kill(pid, signal.SIGCONT)


def health_word(server: ObservedServer) -> str:
    return str(server.inspect("state")["health"]["word"])


def ready_status(server: ObservedServer) -> tuple[int, str]:
    status, body = server.server.request("GET", "/readyz")
    return status, body.get("error", {}).get("reason", "")


def named_stall(server: ObservedServer, since: float) -> dict[str, Any]:
    """The one stall there is, once it is named."""
    await_that(lambda: health_word(server) == "stalled")
    assert time.monotonic() - since < 3 * PROMISED_SECONDS
    (stall,) = server.inspect("state")["stalls"]["current"]
    return dict(stall)


@pytest.mark.parametrize(
    ("title", "rank", "kind"), [("EngineCore_DP0", -1, "engine_core"), ("Worker_TP0", 0, "worker")]
)
def test_a_stopped_process_is_named_and_readiness_follows(
    server: ObservedServer, base: Path, title: str, rank: int, kind: str
) -> None:
    pid = server.server.child(title).pid
    with Streams(server) as streams:
        with stopped(pid) as since:
            stall = named_stall(server, since)
            assert (stall["role"], stall["pid"], stall["rank"], stall["process_state"]) == (title, pid, rank, "T")
            assert f"has {NUM_STREAMS} running and 0 waiting, and does not move: {title} (" in stall["says"]
            assert "is stopped by a signal, last seen" in stall["says"]
            await_that(lambda: ready_status(server) == (503, "stalled"))
            assert time.monotonic() - since < 3 * PROMISED_SECONDS
            assert [server.server.request("GET", path)[0] for path in ("/livez", "/health")] == [200, 200]
            status, body = server.server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 1})
            assert (status, body["error"]["reason"]) == (503, "stalled")
            assert total(server.samples(), "vllm_obs_stalled", engine="0", role=kind) == 1
        await_that(lambda: ready_status(server) == (200, ""))
        await_that(lambda: health_word(server) in ("ok", "idle"))
    assert streams.num_events == [streams.num_events[0]] * NUM_STREAMS
    samples = server.samples()
    assert total(samples, "vllm_obs_stalled", engine="0", role=kind) == 0
    assert total(samples, "vllm_obs_stalls_total", engine="0", role=kind) == 1
    past = server.inspect("state")["stalls"]["past"]
    assert [each["ended_at"] > each["noticed_at"] for each in past if each["role"] == title] == [True]
    (written,) = (path for path in (only_run(base) / "stalls").iterdir() if path.stem.endswith(f"-{pid}"))
    text = written.read_text()
    assert stall["says"] in text
    assert f"== {title}\n" in text
    assert "== APIServer_0\n" in text
    assert "Once" not in text


def test_an_engine_that_is_stopped_at_rest_is_found_by_what_it_does_not_take(
    server: ObservedServer,
) -> None:
    core = server.server.child("EngineCore_DP0").pid
    await_that(lambda: health_word(server) == "idle")
    with stopped(core):
        time.sleep(1.5 * STALL_SECONDS)
        assert (health_word(server), ready_status(server)) == ("idle", (200, ""))
        asking = threading.Thread(target=server.complete, kwargs={"prompt": "Hi", "max_tokens": 2})
        asking.start()
        since = time.monotonic()
        stall = named_stall(server, since)
        assert (stall["role"], stall["activity"]) == ("EngineCore_DP0", "waiting")
        assert "and 1 that it has not taken" in stall["says"]
        await_that(lambda: ready_status(server) == (503, "stalled"))
    asking.join(30)
    assert not asking.is_alive()
    await_that(lambda: ready_status(server) == (200, ""))


def test_a_stopped_api_server_is_named_by_the_inspector(server: ObservedServer) -> None:
    pid = server.server.process.pid
    await_that(lambda: not server.inspect("state")["stalls"]["current"])  # those of the tests before are over
    with stopped(pid) as since:
        stall = named_stall(server, since)
        assert (stall["engine"], stall["role"], stall["pid"]) == ("", "APIServer_0", pid)
        assert "is stopped by a signal, and answers nobody." in stall["says"]
    await_that(lambda: health_word(server) == "idle")
    assert ready_status(server) == (200, "")


def answers(server: ObservedServer) -> bool:
    """Whether an Observer is there, be it another."""
    server.close()
    with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
        return bool(server.inspect("state"))
    return False


def test_nobody_is_blamed_for_a_stopped_observer(server: ObservedServer) -> None:
    def num_stalls() -> int:
        stalls = server.inspect("state")["stalls"]
        return len(stalls["current"]) + len(stalls["past"])

    before = num_stalls()
    observer = server.server.child("Observer").pid
    with Streams(server):
        with stopped(observer):
            time.sleep(2 * STALL_SECONDS)
        await_that(lambda: answers(server))
        assert health_word(server) != "stalled"
    assert num_stalls() == before
