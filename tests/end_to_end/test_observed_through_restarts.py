"""The Observer is killed while requests run, or while the engine is dead: its successor goes on without a gap."""

import contextlib
import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from load_client import Asked, LoadClient
from observed_server import ObservedServer, await_that, synthetic, total

NUM_REQUESTS = 120
NUM_TOKENS = 40
BODY = {"prompt": [5] * 20, "max_tokens": NUM_TOKENS, "ignore_eos": True}
RESTART_SECONDS = 60.0
"""Half a second of pause and a second of work, most of it imports, which a busy machine may stretch."""


@pytest.fixture
def server() -> Iterator[ObservedServer]:
    with synthetic() as running:
        yield running


def answers(server: ObservedServer) -> bool:
    return server.server.request("GET", "/metrics")[0] == 200


def test_counters_go_on_where_a_killed_observer_left_them(server: ObservedServer) -> None:
    client = LoadClient(server.port, 8)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(client.run, [Asked(f"r-{number}", BODY) for number in range(NUM_REQUESTS)])
        before = await_that(lambda: total(server.samples(), "vllm:generation_tokens_total"))
        observer = server.server.child("Observer")
        observer.kill()
        await_that(lambda: answers(server), RESTART_SECONDS)
        assert total(server.samples(), "vllm:generation_tokens_total") >= before
        seen = load.result()
    assert {one.status for one in seen} == {200}
    assert server.server.child("Observer").pid != observer.pid
    server.server.family.append(server.server.child("Observer"))

    def are_counted() -> bool:
        return total(server.samples(), "vllm:request_success_total", finished_reason="length") >= NUM_REQUESTS

    await_that(are_counted)
    samples = server.samples()
    assert total(samples, "vllm:request_success_total") == NUM_REQUESTS
    assert total(samples, "vllm:generation_tokens_total") == NUM_REQUESTS * NUM_TOKENS
    assert total(samples, "vllm:e2e_request_latency_seconds_count") == NUM_REQUESTS
    assert total(samples, "http_requests_total", handler="/v1/completions") == NUM_REQUESTS
    assert total(samples, "vllm:num_requests_running") == 0
    assert total(samples, "vllm_obs_invariant_violations_total") == 0


def word_of(server: ObservedServer) -> str:
    """How the run is, empty while nobody tells."""
    server.close()
    server._inspector = None
    with contextlib.suppress(OSError, http.client.HTTPException):
        return str(server.inspect("state")["health"]["word"])
    return ""


def test_one_that_starts_while_the_engine_is_dead_tells_when_another_serves() -> None:
    slow = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": "engine_start=delay:3"}
    with synthetic(env=slow) as server:
        server.complete(**BODY)
        observer = server.server.child("Observer")
        server.server.child("EngineCore").kill()
        observer.kill()
        await_that(lambda: word_of(server) == "restarting")
        assert server.server.child("Observer").pid != observer.pid
        await_that(lambda: word_of(server) == "idle", RESTART_SECONDS)
        assert server.server.request("GET", "/readyz")[0] == 200
        server.complete(**BODY)
        assert {death["role"] for death in server.inspect("state")["deaths"]} == {"EngineCore_DP0", "Observer"}
        server.server.family += [server.server.child(title) for title in ("Observer", "EngineCore")]
