"""Packets between two Ray hosts are dropped without a word: the stream ends, the host is named, all comes back."""

import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ray_cluster import HOST_SECONDS, RayCluster, ray_cluster, synthetic_over_ray, wait_ready_again
from two_hosts import HostProcess, TwoHosts, two_hosts, why_not

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: vllm-obs[ray]"),
]

BODY = {"model": "synthetic", "prompt": "Two hosts", "ignore_eos": True, "max_tokens": 8}


@pytest.fixture
def wired() -> Iterator[TwoHosts]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture
def cluster(wired: TwoHosts) -> Iterator[RayCluster]:
    """Two hosts, each with room for one rank."""
    with ray_cluster(num_cpus=1, num_hosts=2, wired=wired) as made:
        yield made


def test_hosts_that_cannot_hear_each_other_part_and_find_each_other_again(
    wired: TwoHosts, cluster: RayCluster
) -> None:
    server = HostProcess(wired, 0, *synthetic_over_ray(2), env=cluster.environment, is_alone=True)
    try:
        server.wait_ready(120.0)
        events: list[dict[str, Any]] = []
        unplugged_at = 0.0
        for event in server.stream("/v1/completions", {**BODY, "max_tokens": 4000}):
            events.append(event)
            if len(events) == 3:
                wired.unplug()
                unplugged_at = time.monotonic()
        assert time.monotonic() - unplugged_at < 3 * HOST_SECONDS
        assert events[-1]["error"]["reason"] == "engine_dead"
        assert server.request("GET", "/readyz")[0] == 503
        assert f"({wired.addresses[1]}) gave no sign of life" in server.log.read_text()
        wired.plug()
        wait_ready_again(server)
        assert server.request("POST", "/v1/completions", BODY)[0] == 200
        assert server.stop() == 0
    finally:
        server.close()
    cluster.wait_no_actors()
