"""Where hosts meet: addresses that a socket can be bound to, and what ranks need to find each other."""

import ipaddress
import socket

from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.group_setup import GroupSetup

CONTROL_PORT_OFFSET = 1
"""The master port itself is where torch's ranks meet; at the next one host 0 listens for the other hosts."""
_ANY_PORT = 9


def control_port(parallel: ParallelConfig) -> int:
    """The port at which host 0 listens for agents. ConfigError where there is none above the master port."""
    port = parallel.master_port + CONTROL_PORT_OFFSET
    if port > 65535:
        raise ConfigError(f"--master-port {parallel.master_port} has no port above it, which agents come to")
    return port


def resolved(address: str) -> str:
    """The numeric address of a host's name. ConfigError when it has none."""
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"--master-addr {address:.256}: {error.strerror or error}") from None


def control_endpoint(parallel: ParallelConfig) -> str:
    """Where host 0 listens for agents, for ZeroMQ: that address only, never all of them."""
    address = resolved(parallel.master_addr)
    shown = f"[{address}]" if ":" in address else address
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise ConfigError(f"--master-addr {parallel.master_addr} is every address; name the one for other hosts")
    return f"tcp://{shown}:{control_port(parallel)}"


def own_address(address: str) -> str:
    """The address that this host has towards that one (which may be its own). ConfigError where no way leads."""
    target = resolved(address)
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, _ANY_PORT))  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"--master-addr {address:.256} cannot be reached: {error.strerror}") from None


def group_over_hosts(parallel: ParallelConfig, rank: int, sums_fd: int = -1) -> GroupSetup:
    """Ranks of several hosts meet at the master port, each at the address by which its host reaches host 0.

    In memory (`sums_fd`) shards exchange only where one host has all of their stage.
    """
    if parallel.tensor_parallel_size * parallel.pipeline_parallel_size == 1:
        return GroupSetup()
    address = resolved(parallel.master_addr)
    shown = f"[{address}]" if ":" in address else address
    meeting = f"tcp://{shown}:{parallel.master_port}"
    sums_fd = sums_fd if _is_stage_on_one_host(parallel, rank) else -1
    return GroupSetup(rank, parallel.world_size, meeting, own_address(address), sums_fd=sums_fd)


def _is_stage_on_one_host(parallel: ParallelConfig, rank: int) -> bool:
    num_shards, num_here = parallel.tensor_parallel_size, parallel.world_size // parallel.nnodes
    first = rank // num_shards * num_shards
    return first // num_here == (first + num_shards - 1) // num_here
