"""Two engines of the default model behind one port: the tokens of one process, and what the death of one does."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from mixed_requests import ANSWER_SECONDS, Judge, MixedRequest, mixed_requests
from observed_server import ObservedServer, await_that, total
from process_watch import gone
from serving import Server

from vllm_obs.engine.frontend.llm import LLM

pytestmark = pytest.mark.timeout(900)
TEXT = "/v1/completions"
LIGHT = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28, "max_num_seqs": 64}
NUM_STREAMS = 8
RELOAD_SECONDS = 15.0
"""Three times what is promised beyond the time of the first load."""


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    flags = [word for name, value in LIGHT.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    running = Server(*flags, "--data-parallel-size", "2")
    try:
        running.wait_ready(120)
        with contextlib.closing(ObservedServer(running)) as watched:
            yield watched
        running.family += psutil.Process(running.process.pid).children(recursive=True)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert running.leftovers(10) == []
    finally:
        running.close()


def states(server: Server) -> dict[str, str]:
    status, ready = server.request("GET", "/readyz")
    assert (status, ready["status"]) == (200, "ready")
    return dict(ready["engines"])


@pytest.mark.parametrize("num_requests", [12, pytest.param(64, marks=pytest.mark.long)])
def test_the_tokens_of_one_process_and_each_engine_has_its_share(
    server: ObservedServer, num_requests: int
) -> None:
    mix, before = mixed_requests(num_requests), num_served(server)

    def ask(request: MixedRequest) -> tuple[int, Any]:
        return server.server.request("POST", TEXT, request.body, ANSWER_SECONDS)

    with ThreadPoolExecutor(len(mix)) as pool:
        replies = list(pool.map(ask, mix))
    assert {status for status, _ in replies} == {200}
    with LLM(**LIGHT) as llm:
        outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
    alone = [output.outputs[0].token_ids for output in outputs]
    Judge(mix).compare("two engines", alone, [reply["choices"][0]["token_ids"] for _, reply in replies])
    shares = [now - then for now, then in zip(num_served(server), before, strict=True)]
    assert sum(shares) == len(mix)
    assert min(shares) >= len(mix) / 4
    assert server.broken_laws() == []


def num_served(server: ObservedServer) -> list[float]:
    """Sequences that each engine has ended so far."""
    samples = server.samples()
    return [total(samples, "vllm:request_success_total", engine=engine) for engine in ("0", "1")]


class Stream(threading.Thread):
    """An open stream, and its lines so far."""

    num_tokens = 300

    def __init__(self, server: Server, number: int) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._server = server
        self._body = {
            "prompt": f"Story number {number}:",
            "max_tokens": self.num_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
        }
        self.ended_at = 0.0

    def run(self) -> None:
        connection = self._server.connect(120)
        try:
            connection.request("POST", TEXT, json.dumps(self._body), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.strip():
                    self.lines.append(line.decode().strip())
        finally:
            self.ended_at = time.monotonic()
            connection.close()


def test_a_killed_engine_ends_its_own_streams_and_is_back_in_time(server: ObservedServer) -> None:
    streams = [Stream(server.server, number) for number in range(NUM_STREAMS)]
    for stream in streams:
        stream.start()
    await_that(lambda: all(stream.lines for stream in streams), 60)
    engine = server.server.child("EngineCore_DP1")
    before = server.samples()
    engine.kill()
    killed_at = time.monotonic()
    await_that(lambda: states(server.server) == {"0": "up", "1": "restarting"}, 5)
    status, _ = server.server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 2})
    assert status == 200, "the other takes all"
    for stream in streams:
        stream.join(120)
    cut = [stream for stream in streams if stream.lines[-1] != "data: [DONE]"]
    assert len(cut) == NUM_STREAMS // 2
    for stream in cut:
        error = json.loads(stream.lines[-1].removeprefix("data: "))["error"]
        assert error["reason"] == "engine_dead"
        assert error["message"].endswith("EngineCore_DP1 was killed by SIGKILL")
        assert stream.ended_at - killed_at < 3 * 2.0
    for stream in streams:
        if stream not in cut:
            usage = json.loads(stream.lines[-2].removeprefix("data: "))["usage"]
            assert usage["completion_tokens"] == stream.num_tokens
    assert gone(engine.pid, 1)
    await_that(lambda: states(server.server) == {"0": "up", "1": "up"}, RELOAD_SECONDS + 3 * 5.0)
    for _ in range(4):
        assert server.server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 2})[0] == 200
    await_that(lambda: total(server.samples(), "vllm_obs_engine_restarts_total", engine="1") == 1, 20)
    after = server.samples()
    assert total(after, "vllm_obs_engine_restarts_total", engine="0") == 0
    for engine_label in ("0", "1"):
        done = [total(each, "vllm:request_success_total", engine=engine_label) for each in (before, after)]
        assert done[1] > done[0], "counters go on"
    assert total(after, "vllm:request_success_total", finished_reason="error") == len(cut)
    assert server.broken_laws() == []
