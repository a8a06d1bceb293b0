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


def test_synthetic_ranks_meet_nowhere() -> None:
    assert group_over_hosts(cluster_config().parallel, 1) == GroupSetup()
