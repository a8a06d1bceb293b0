"""What values the engine's flags may have, each for itself: one line with the limit where one is out of it."""

from collections.abc import Mapping
from typing import Any

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import ENGINE_FLAGS

MAX_BLOCK_SIZE = 256
MAX_NODE_TIMEOUT_SECONDS = 86_400

_BOUNDS: dict[str, tuple[int, int]] = {
    "max_model_len": (1, 1 << 30),
    "max_logprobs": (-1, 1 << 30),
    "seed": (0, (1 << 63) - 1),
    "block_size": (1, MAX_BLOCK_SIZE),
    "kv_cache_memory_bytes": (1, 1 << 50),
    "num_gpu_blocks_override": (1, 1 << 31),
    "max_num_seqs": (1, 1 << 16),
    "max_num_batched_tokens": (1, 1 << 24),
    "max_num_mixed_prefill_tokens": (1, 1 << 24),
    "stream_interval": (1, 1 << 16),
    "max_num_queued_reqs": (0, 1 << 16),
    "max_num_queued_tokens": (1, 1 << 30),
    "max_cudagraph_capture_size": (1, 1 << 16),
    "tensor_parallel_size": (1, 64),
    "pipeline_parallel_size": (1, 64),
    "data_parallel_size": (1, 64),
    "data_parallel_rank": (0, 63),
    "nnodes": (1, 64),
    "node_rank": (0, 63),
    "master_port": (1, 65535),
}


def check_flags(values: Mapping[str, Any]) -> None:
    """All flags' values, by field name. ConfigError for one that is not among its choices or out of its bounds."""
    for flag in ENGINE_FLAGS:
        value = values[flag.name]
        if flag.choices and value is not None and value not in flag.choices:
            raise ConfigError(f"{flag.option} {value!s:.64} is not one of {', '.join(flag.choices)}")
    for name, (least, most) in _BOUNDS.items():
        _check_bounds(name, values[name], least, most)
    if not 1 <= values["node_timeout"] <= MAX_NODE_TIMEOUT_SECONDS:
        most = MAX_NODE_TIMEOUT_SECONDS
        raise ConfigError(f"--node-timeout {values['node_timeout']:g} is not between 1 and {most} seconds")
    if not 0 < (utilization := values["gpu_memory_utilization"]) <= 1:
        raise ConfigError(f"--gpu-memory-utilization {utilization} is not above 0 and at most 1")


def _check_bounds(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise ConfigError(f"--{name.replace('_', '-')} {value} is not between {least} and {most}")
