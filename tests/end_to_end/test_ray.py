"""One engine over Ray actors: the same tokens, and an actor that is killed is named and replaced."""

import importlib.util
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mixed_requests import Judge, MixedRequest, mixed_requests
from ray_cluster import ENVIRONMENT, RayCluster, ray_cluster
from serving import Server, serving

from vllm_obs.engine.frontend.llm import LLM

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: vllm-obs[ray]"),
]

SYNTHETIC = [
    *("--load-format", "synthetic", "--distributed-executor-backend", "ray"),
    *("--model-loader-extra-config", json.dumps({"num_ranks": 2, "base_seconds": 0.02})),
]
ACTOR_SECONDS = 15.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        yield made


def environment(cluster: RayCluster) -> dict[str, str]:
    return {**ENVIRONMENT, "RAY_ADDRESS": cluster.address}


def wait_no_actors(cluster: RayCluster) -> None:
    deadline = time.monotonic() + ACTOR_SECONDS
    while cluster.actors():
        assert time.monotonic() < deadline, cluster.actors()
        time.sleep(0.1)


def test_a_killed_actor_is_named_and_another_takes_its_place(cluster: RayCluster) -> None:
    body = {"model": "synthetic", "prompt": "Two actors", "ignore_eos": True}
    with serving(*SYNTHETIC, env=environment(cluster)) as server:
        status, reply = server.request("POST", "/v1/completions", {**body, "max_tokens": 8})
        assert (status, reply["usage"]["completion_tokens"]) == (200, 8)
        assert len(cluster.actors()) == 2
        events: list[dict[str, Any]] = []
        killed_at = 0.0
        for event in server.stream("/v1/completions", {**body, "max_tokens": 4000}):
            events.append(event)
            if len(events) == 3:
                cluster.actors()[0].kill()
                killed_at = time.monotonic()
        assert time.monotonic() - killed_at < ACTOR_SECONDS
        assert events[-1]["error"]["reason"] == "engine_dead"
        assert "was lost" in events[-1]["error"]["message"]
        wait_ready_again(server)
        assert server.request("POST", "/v1/completions", {**body, "max_tokens": 8})[0] == 200
    wait_no_actors(cluster)


def wait_ready_again(server: Server) -> None:
    deadline = time.monotonic() + 90.0
    while "(generation 1)" not in server.log.read_text():
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.1)
    server.wait_ready(10.0)


def test_more_ranks_than_the_cluster_has_room_for_are_refused(cluster: RayCluster) -> None:
    config = json.dumps({"num_ranks": 3})
    args = ["--load-format", "synthetic", "--distributed-executor-backend", "ray"]
    server = Server(*args, "--model-loader-extra-config", config, env=environment(cluster))
    try:
        assert server.process.wait(60.0) == 70
        assert "3 CPUs of Ray are wanted, one for each rank; it has 2" in server.log.read_text()
    finally:
        server.close()
    wait_no_actors(cluster)


def test_the_same_tokens_over_two_actors(cluster: RayCluster) -> None:
    mix = mixed_requests()
    with LLM(dtype="float32", max_model_len=2048, kv_cache_memory_bytes=1 << 28, max_num_seqs=1) as llm:
        outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
    alone = [output.outputs[0].token_ids for output in outputs]
    flags = ["--dtype", "float32", "--max-model-len", "2048", "--kv-cache-memory-bytes", "256M"]
    parallel = ["--pipeline-parallel-size", "2", "--distributed-executor-backend", "ray"]
    server = Server(*flags, *parallel, env=environment(cluster))
    try:
        server.wait_ready(120.0)
        with ThreadPoolExecutor(8) as pool:
            tokens = list(pool.map(lambda request: ask(server, request), mix))
        assert server.stop() == 0
        assert server.leftovers() == []
    finally:
        server.close()
    Judge(mix).compare("two actors", alone, tokens)
    wait_no_actors(cluster)


def ask(server: Server, request: MixedRequest) -> list[int]:
    status, reply = server.request("POST", "/v1/completions", request.body)
    assert status == 200, reply
    tokens: list[int] = reply["choices"][0]["token_ids"]
    return tokens
