"""How large the paged KV cache is, and why."""

import logging

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.worker.placement import placement

logger = logging.getLogger(__name__)

GIB = 2**30
CPU_DEFAULT_CAP_BYTES = 4 * GIB
CPU_MAX_FRACTION = 0.5
"""A CPU's memory is shared with everything else a machine does, a GPU's is not."""


def cpu_cache_budget(config: VllmConfig, free_bytes: int) -> int:
    """Bytes one rank's cache may take of a host with `free_bytes` free, which all ranks there share.

    Unless the user gave a size: the fraction --gpu-memory-utilization of it, at most half, at most 4 GiB.
    """
    cache = config.cache
    free_bytes //= placement(config, 0).num_local_ranks
    if cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None:
        return free_bytes
    fraction = min(cache.gpu_memory_utilization, CPU_MAX_FRACTION)
    return min(int(free_bytes * fraction), CPU_DEFAULT_CAP_BYTES)


def size_kv_cache(config: VllmConfig, block_bytes: int, available_bytes: int) -> KVCapacity:
    """How many blocks of `block_bytes` (over all layers) to allocate where `available_bytes` may be taken.

    --num-gpu-blocks-override decides alone; then --kv-cache-memory-bytes; then what is available, but on a CPU
    no more than --max-num-seqs sequences of --max-model-len can use. Raises ConfigError when the size is more
    than there is, or when not even one sequence of --max-model-len fits (an override may be that small: the
    scheduler ends requests that can never fit).
    """
    per_sequence = -(-config.model.max_model_len // config.cache.block_size)
    if not block_bytes:
        num_blocks = config.cache.num_gpu_blocks_override or config.scheduler.max_num_seqs * per_sequence
        return KVCapacity(num_blocks, 0, available_bytes, "nothing: this model keeps no keys and values")
    num_blocks, bound = _blocks_and_bound(config, block_bytes, available_bytes)
    if num_blocks * block_bytes > available_bytes:
        raise ConfigError(
            f"the KV cache asked for by {bound} takes {size_text(num_blocks * block_bytes)}, "
            f"but {size_text(available_bytes)} are free; lower it"
        )
    if num_blocks < per_sequence:
        _report_too_small(config, num_blocks, block_bytes)
    logger.info(
        "KV cache: %d blocks of %d tokens, %s, set by %s",
        num_blocks,
        config.cache.block_size,
        size_text(num_blocks * block_bytes),
        bound,
    )
    return KVCapacity(num_blocks, block_bytes, available_bytes, bound)


def _blocks_and_bound(config: VllmConfig, block_bytes: int, available_bytes: int) -> tuple[int, str]:
    cache = config.cache
    if cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override, "--num-gpu-blocks-override"
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes // block_bytes, "--kv-cache-memory-bytes"
    affordable = available_bytes // block_bytes
    useful = config.scheduler.max_num_seqs * -(-config.model.max_model_len // cache.block_size)
    if config.model.device == "cpu" and useful <= affordable:
        return useful, "--max-num-seqs times --max-model-len"
    if config.model.device == "cpu" and available_bytes == CPU_DEFAULT_CAP_BYTES:
        return affordable, f"the default cap of {size_text(CPU_DEFAULT_CAP_BYTES)} on a CPU"
    return affordable, "free memory"


def _report_too_small(config: VllmConfig, num_blocks: int, block_bytes: int) -> None:
    block_size, length = config.cache.block_size, config.model.max_model_len
    held = num_blocks * block_size
    if config.cache.num_gpu_blocks_override is not None and num_blocks > 0:
        logger.warning(
            "the KV cache holds %d tokens, less than --max-model-len %d: sequences longer than it will fail",
            held,
            length,
        )
        return
    needed = -(-length // block_size) * block_bytes
    raise ConfigError(
        f"one sequence of {length} tokens needs {size_text(needed)} of KV cache, "
        f"and there are {size_text(num_blocks * block_bytes)} ({held} tokens); "
        "lower --max-model-len or raise --kv-cache-memory-bytes"
    )


def size_text(num_bytes: int) -> str:
    """A size for people; small ones keep their digits, so that two numbers in a message always differ visibly."""
    if num_bytes < 2**20:
        return f"{num_bytes} bytes"
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / 2**20:.2f} MiB"
