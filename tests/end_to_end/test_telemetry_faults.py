"""The Observer killed, stopped and robbed of its receiver: serving does not notice, and the data say what was."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from dead_ends import BlackHole, black_hole, stalled_scrapes
from load_client import Asked, LoadClient, Seen
from observed_server import NAME, ObservedServer, await_that, synthetic, total
from steady_load import UNHURRIED

BACK_SECONDS = 3 * 5.0
"""Three times what is promised."""
MAX_QUEUE = 256
GROWTH_BYTES = 64 << 20
NUM_TOKENS = 40
BODY = {"prompt": [5] * 20, "max_tokens": NUM_TOKENS, "ignore_eos": True, "model": NAME}
LONG_SECONDS = float(os.environ.get("VLLM_OBS_TEST_LONG_SECONDS", "600"))


@pytest.fixture(scope="module")
def hole() -> Iterator[BlackHole]:
    with black_hole() as hole:
        yield hole


@pytest.fixture(scope="module")
def server(hole: BlackHole) -> Iterator[ObservedServer]:
    """It traces everything into a black hole."""
    variables = UNHURRIED | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": hole.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2000",
        "OTEL_BSP_MAX_QUEUE_SIZE": str(MAX_QUEUE),
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with synthetic(env=variables) as running:
        yield running


class Load:
    """Requests that are sent all the time, and whether every one of them was answered in full."""

    def __init__(self, server: ObservedServer) -> None:
        self._client = LoadClient(server.port, 4)
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> "Load":
        self._sending: Future[list[Seen]] = self._pool.submit(self._send)
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        seen = self._sending.result(120)
        self._pool.shutdown()
        assert {one.status for one in seen} == {200}
        assert {one.usage["completion_tokens"] for one in seen} == {NUM_TOKENS}
        self.num_requests = len(seen)

    def _send(self) -> list[Seen]:
        seen: list[Seen] = []
        while not self._is_over.is_set():
            seen += self._client.run(Asked(f"r-{len(seen) + number}", BODY) for number in range(8))
        return seen


def answers(server: ObservedServer) -> bool:
    return server.server.request("GET", "/metrics")[0] == 200


def dropped(server: ObservedServer) -> float:
    return total(server.samples(), "vllm_obs_dropped_spans_total")


def rows_of_observers(server: ObservedServer) -> list[dict[str, Any]]:
    return [row for row in server.inspect("processes")["processes"] if row["role"] == "Observer"]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_observer_that_ends_or_stands_still_is_replaced(server: ObservedServer, fault: signal.Signals) -> None:
    with Load(server) as load:
        before = await_that(lambda: total(server.samples(), "vllm:generation_tokens_total"))
        starts = total(server.samples(), "vllm_obs_process_starts_total", role="Observer")
        observer, begun = server.server.child("Observer"), time.monotonic()
        observer.send_signal(fault)
        assert [server.server.request("GET", path)[0] for path in ("/readyz", "/livez")] == [200, 200]
        await_that(lambda: _pid_of(server) != observer.pid and answers(server), 3 * BACK_SECONDS)
        assert time.monotonic() - begun < BACK_SECONDS
        server.server.family.append(server.server.child("Observer"))
        assert total(server.samples(), "vllm:generation_tokens_total") >= before
    # The gap is in the data: who ended how, and that another was started.
    server.close()
    server._inspector = None
    assert total(server.samples(), "vllm_obs_process_starts_total", role="Observer") == starts + 1
    (row,) = (row for row in rows_of_observers(server) if row["pid"] == observer.pid)
    assert (row["state"], row["exit_code"]) == ("exited", -signal.SIGKILL)
    assert load.num_requests > 0
    assert total(server.samples(), "vllm_obs_invariant_violations_total") == 0


def _pid_of(server: ObservedServer) -> int:
    try:
        return server.server.child("Observer").pid
    except AssertionError:
        return 0


def test_what_cannot_be_sent_is_dropped_and_counted(server: ObservedServer, hole: BlackHole) -> None:
    observer = server.server.child("Observer")
    before, resident = dropped(server), observer.memory_info().rss
    with Load(server), stalled_scrapes(server.port, 4):
        await_that(lambda: dropped(server) > before + MAX_QUEUE, 60)
        assert server.inspect("telemetry")["spans"]["num_queued"] <= MAX_QUEUE
        assert answers(server)
    assert hole.num_connections > 0
    assert observer.memory_info().rss - resident < GROWTH_BYTES
    assert total(server.samples(), "vllm_obs_dropped_spans_total", reason="queue_full") > 0


def test_scrapers_that_stop_reading_hold_up_nobody(server: ObservedServer) -> None:
    api = psutil.Process(server.server.process.pid)
    resident = api.memory_info().rss
    with stalled_scrapes(server.port, 40) as scrapers, Load(server):
        for _ in range(5):
            assert answers(server)
        assert total(server.samples(), "vllm:num_requests_running") >= 0
        assert len(scrapers) == 40
    assert api.memory_info().rss - resident < GROWTH_BYTES


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 600)
def test_memory_stays_flat_for_minutes(server: ObservedServer) -> None:
    """With load all the time, a dead receiver and stalled scrapers; the first half is the time to warm up."""
    processes = [psutil.Process(server.server.process.pid), server.server.child("Observer")]
    with Load(server), stalled_scrapes(server.port, 4):
        time.sleep(LONG_SECONDS / 2)
        before, lost = [process.memory_info().rss for process in processes], dropped(server)
        time.sleep(LONG_SECONDS / 2)
        grown = [process.memory_info().rss - was for process, was in zip(processes, before, strict=True)]
        assert dropped(server) > lost
    print(f"grown by {grown} bytes in {LONG_SECONDS / 2:g} s, {dropped(server) - lost:g} spans dropped")
    assert max(grown) < GROWTH_BYTES
