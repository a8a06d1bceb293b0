"""One engine over two Ray hosts: the same tokens, all that is recorded there, and a host that dies is named."""

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest
from mixed_requests import ANSWER_SECONDS, Judge, MixedRequest, mixed_requests
from process_watch import gone
from ray_cluster import HOST_SECONDS, RayCluster, ray_cluster, synthetic_over_ray, wait_ready_again
from serving import Server, serving

from vllm_obs.engine.frontend.llm import LLM

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: vllm-obs[ray]"),
]

BODY = {"model": "synthetic", "prompt": "Two hosts", "ignore_eos": True, "max_tokens": 8}
BOTH = {0, 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two hosts, each with room for one rank."""
    with ray_cluster(num_cpus=1, num_hosts=2) as made:
        yield made


def inspected(server: Server, path: str) -> Any:
    """What the inspector answers."""
    connection = HTTPConnection(server.inspector, timeout=10.0)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def wait_step_of_both(server: Server, after: int = -1) -> int:
    """The last step beyond that one of which the ranks on both hosts have recorded their part."""

    def look() -> list[int]:
        steps = inspected(server, "/inspect/steps")["steps"]
        found = zip(steps["step"], steps["ranks"], strict=True)
        return [step for step, parts in found if {rank for rank, *_ in parts} == BOTH and step > after]

    return wait_for(look)[-1]


def wait_for(look: Callable[[], list[int]], seconds: float = 30.0) -> list[int]:
    """What it finds, as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_the_same_tokens_over_two_hosts(cluster: RayCluster) -> None:
    mix = mixed_requests()
    with LLM(dtype="float32", max_model_len=2048, kv_cache_memory_bytes=1 << 28, max_num_seqs=1) as llm:
        outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
    alone = [output.outputs[0].token_ids for output in outputs]
    flags = ["--dtype", "float32", "--max-model-len", "2048", "--kv-cache-memory-bytes", "256M"]
    parallel = ["--pipeline-parallel-size", "2", "--distributed-executor-backend", "ray"]
    server = Server(*flags, *parallel, env=cluster.environment)
    try:
        server.wait_ready(120.0)
        with ThreadPoolExecutor(8) as pool:
            tokens = list(pool.map(lambda request: ask(server, request), mix))
        assert server.stop() == 0
        assert server.leftovers() == []
    finally:
        server.close()
    Judge(mix).compare("two Ray hosts", alone, tokens)
    cluster.wait_no_actors()


def ask(server: Server, request: MixedRequest) -> list[int]:
    status, reply = server.request("POST", "/v1/completions", request.body, ANSWER_SECONDS)
    assert status == 200, reply
    tokens: list[int] = reply["choices"][0]["token_ids"]
    return tokens


def test_each_host_has_an_observer_and_one_that_is_killed_is_started_again(cluster: RayCluster) -> None:
    with serving(*synthetic_over_ray(2), env=cluster.environment) as server:
        server.wait_observed()
        assert server.request("POST", "/v1/completions", BODY)[0] == 200
        first = wait_step_of_both(server)
        processes = inspected(server, "/inspect/processes")["processes"]
        hosts = {each["host"] for each in processes if each["role"].startswith("Worker")}
        assert len(hosts) == 2, hosts
        observers = cluster.actors("RayObserver")
        assert len(observers) == 2
        for observer in observers:
            observer.kill()
            assert gone(observer.pid, 10.0)
        wait_for(lambda: [each.pid for each in cluster.actors("RayObserver")][1:])
        assert server.request("POST", "/v1/completions", BODY)[0] == 200
        assert wait_step_of_both(server, after=first) > first
        assert server.stop() == 0
    cluster.wait_no_actors()


def test_a_host_that_is_gone_is_named_and_another_takes_its_place(cluster: RayCluster) -> None:
    with serving(*synthetic_over_ray(2), env=cluster.environment) as server:
        events: list[dict[str, Any]] = []
        killed_at = 0.0
        for event in server.stream("/v1/completions", {**BODY, "max_tokens": 4000}):
            events.append(event)
            if len(events) == 3:
                cluster.hosts[1].kill()
                killed_at = time.monotonic()
        assert time.monotonic() - killed_at < 3 * HOST_SECONDS
        assert events[-1]["error"]["reason"] == "engine_dead"
        assert "was lost" in events[-1]["error"]["message"]
        assert "(127.0.0.2)" in server.log.read_text()
        assert server.request("GET", "/readyz")[0] == 503
        cluster.join()
        wait_ready_again(server)
        assert server.request("POST", "/v1/completions", BODY)[0] == 200
    cluster.wait_no_actors()
