"""Where hosts meet: one named address, the port above the master port, and this host's own address."""

from dataclasses import replace

import pytest
from agent_process import cluster_config

from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.group_setup import GroupSetup
from vllm_obs.engine.nodes.network import control_endpoint, group_over_hosts, own_address, resolved

PARALLEL = ParallelConfig("mp", 2, pipeline_parallel_size=2, nnodes=2, master_port=29501)


def test_agents_come_to_the_port_above_the_master_port() -> None:
    assert control_endpoint(PARALLEL) == "tcp://127.0.0.1:29502"
    assert control_endpoint(replace(PARALLEL, master_addr="localhost")).endswith(":29502")
    assert control_endpoint(replace(PARALLEL, master_addr="::1")) == "tcp://[::1]:29502"


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_no_host_listens_on_every_address(address: str) -> None:
    with pytest.raises(ConfigError, match="every address"):
        control_endpoint(replace(PARALLEL, master_addr=address))


def test_an_address_or_a_port_that_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--master-addr host\.invalid"):
        resolved("host.invalid")
    with pytest.raises(ConfigError, match="--master-port 65535 has no port above it"):
        control_endpoint(replace(PARALLEL, master_port=65535))


def test_ranks_meet_at_the_master_port_by_the_address_that_leads_there() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert group_over_hosts(PARALLEL, 1) == GroupSetup(1, 2, "tcp://127.0.0.1:29501", "127.0.0.1")


@pytest.mark.parametrize(
    ("num_shards", "num_stages", "num_hosts", "is_shared"),
    [
        (2, 2, 2, [True] * 4),
        (2, 1, 2, [False] * 2),
        (2, 3, 2, [True, True, False, False, True, True]),
        (1, 2, 2, [True] * 2),
    ],
)
def test_shards_exchange_in_memory_only_where_one_host_has_all_of_their_stage(
    num_shards: int, num_stages: int, num_hosts: int, is_shared: list[bool]
) -> None:
    parallel = replace(
        PARALLEL,
        world_size=num_shards * num_stages,
        tensor_parallel_size=num_shards,
        pipeline_parallel_size=num_stages,
        nnodes=num_hosts,
    )
    groups = [group_over_hosts(parallel, rank, 7) for rank in range(parallel.world_size)]
    assert [group.sums_fd for group in groups] == [7 if shared else -1 for shared in is_shared]


def test_synthetic_ranks_meet_nowhere() -> None:
    assert group_over_hosts(cluster_config().parallel, 1) == GroupSetup()
