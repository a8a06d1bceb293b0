"""One engine over Ray actors: one that is killed is named and replaced, and one too many is refused."""

import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ray_cluster import ACTOR_SECONDS, RayCluster, ray_cluster, synthetic_over_ray, wait_ready_again
from serving import Server, serving

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: vllm-obs[ray]"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        yield made


def test_a_killed_actor_is_named_and_another_takes_its_place(cluster: RayCluster) -> None:
    body = {"model": "synthetic", "prompt": "Two actors", "ignore_eos": True}
    with serving(*synthetic_over_ray(2), env=cluster.environment) as server:
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
    cluster.wait_no_actors()


def test_more_ranks_than_the_cluster_has_room_for_are_refused(cluster: RayCluster) -> None:
    server = Server(*synthetic_over_ray(3), env=cluster.environment)
    try:
        assert server.process.wait(60.0) == 70
        assert "3 CPUs of Ray are wanted, one for each rank; it has 2" in server.log.read_text()
    finally:
        server.close()
    cluster.wait_no_actors()
