"""A real server of the default model is profiled while it streams: nobody notices, and the table is right."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chrome_trace import check_trace, read_trace
from load_client import Asked, LoadClient, Seen
from observed_server import ObservedServer, await_that
from serving import MODEL, serving

NUM_STREAMS = 8
NUM_TOKENS = 110
NUM_STEPS = 20
NS = 1e9
STOP_SECONDS = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    flags = ("--max-model-len", "1024", "--profiler-config", '{"profiler": "torch", "max_iterations": 500}')
    with serving(MODEL, *flags) as server, contextlib.closing(ObservedServer(server)) as running:
        yield running


class Streams:
    """Eight streams in a thread; all of them must be whole in the end."""

    def __init__(self, server: ObservedServer) -> None:
        body = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
        self._asked = [
            Asked(f"s{number}", body | {"prompt": f"Once upon a time there were {number}"})
            for number in range(NUM_STREAMS)
        ]
        self.seen: list[Seen] = []
        self._client = LoadClient(server.port, NUM_STREAMS)
        self._thread = threading.Thread(target=lambda: self.seen.extend(self._client.run(self._asked)))
        self._thread.start()
        await_that(lambda: server.inspect("steps?limit=1")["steps"]["num_running"] == [NUM_STREAMS])

    def texts(self) -> list[str]:
        """What each stream said."""
        self._thread.join(300)
        assert [one.status for one in self.seen] == [200] * NUM_STREAMS
        assert all(one.finish_reasons == ["length"] for one in self.seen)
        by_label = sorted(self.seen, key=lambda one: one.asked.label)
        return [
            "".join(event["choices"][0]["text"] for event in one.events if event["choices"]) for one in by_label
        ]


def profiled(server: ObservedServer, *options: str) -> subprocess.CompletedProcess[str]:
    """What `vllm-obs profile` prints of this server."""
    url = f"http://{server.server.inspector}"
    command = [sys.executable, "-m", "vllm_obs", "profile", "--url", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ)


def steps_of(server: ObservedServer, first: int, last: int) -> list[tuple[int, int]]:
    """(forward, whole) ns of each step's worker, as it recorded them."""
    columns = server.inspect(f"steps?since={first - 1}&limit={last - first + 1}")["steps"]
    found = zip(columns["step"], columns["ranks"], strict=True)
    ranks = [ranks[0] for step, ranks in found if first <= step <= last and ranks]
    return [(forwarded - prepared, sampled - received) for _, received, prepared, forwarded, _, sampled in ranks]


def test_the_table_is_what_the_worker_recorded_and_no_stream_notices(
    server: ObservedServer, tmp_path: Path
) -> None:
    alone = Streams(server).texts()
    streams = Streams(server)
    done = profiled(server, "--seconds", "60", "--steps", str(NUM_STEPS), "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert streams.texts() == alone
    (place,) = tmp_path.iterdir()
    table: dict[str, Any] = json.loads((place / "Worker_TP0.operators.json").read_text())
    assert (table["num_steps"], table["ended_by"], table["rank"]) == (NUM_STEPS, "steps", 0)

    recorded = steps_of(server, table["first_step"], table["last_step"])
    assert len(recorded) == NUM_STEPS
    forward = sum(forward for forward, _ in recorded) / NS
    whole = sum(whole for _, whole in recorded) / NS
    of_forward = sum(row["self_seconds"] for row in table["operators"] if row["phase"] == "forward")
    assert of_forward == pytest.approx(forward, rel=0.03)
    assert sum(row["self_seconds"] for row in table["operators"]) == pytest.approx(whole, rel=0.03)
    assert table["forward_seconds"] == pytest.approx(forward, rel=0.001)

    # Twice the median is what is promised; a machine with other work to do has slow steps by itself.
    before = steps_of(server, max(1, table["first_step"] - NUM_STEPS), table["first_step"] - 1)
    lengths = [whole for _, whole in recorded]
    assert max(lengths) <= 3 * max(2 * statistics.median(lengths), *(whole for _, whole in before))

    slices = check_trace(read_trace(place / "Worker_TP0.trace.json.gz"))
    assert sum(event["cat"] == "step" for event in slices) == NUM_STEPS
    assert f"Worker_TP0: {NUM_STEPS} steps" in done.stdout
    assert "  Operators account for " in done.stdout
    assert "ui.perfetto.dev" in done.stdout


def test_vllms_routes_begin_and_end_one_under_load(server: ObservedServer) -> None:
    post = server.server.request
    streams = Streams(server)
    status, begun = post("POST", "/start_profile")
    assert (status, begun["max_steps"]) == (200, 500)
    assert post("POST", "/start_profile")[0] == 409
    order = profiled(server)
    assert (order.returncode, "is under way" in order.stderr) == (1, True), order.stderr
    begun_at = time.monotonic()
    status, ended = post("POST", "/stop_profile")
    assert time.monotonic() - begun_at < 3 * STOP_SECONDS
    assert status == 200
    assert post("POST", "/stop_profile")[0] == (409 if ended["state"] == "written" else 200)
    await_that(lambda: server.inspect(f"profiles/{begun['profile']}")["state"] == "written", 120)
    streams.texts()
    (table,) = server.inspect(f"profiles/{begun['profile']}")["operators"]
    assert table["ended_by"] == "order"
    assert table["num_steps"] > 0


def test_an_idle_server_has_no_step_to_tell_of(server: ObservedServer) -> None:
    done = profiled(server, "--seconds", "0.2")
    assert done.returncode == 1, done.stderr
    assert "Worker_TP0: no step ran meanwhile; profile again while requests are served." in done.stdout
    assert done.stderr.endswith("vllm-obs: no step ran in 0.2 s, so there is nothing to show\n")
