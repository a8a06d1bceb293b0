"""What an engine says of itself once its model is loaded: to its client, and for the record."""

import os

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.engine.model_size import ITEM_BYTES, model_size
from vllm_obs.telemetry.records import EngineDescribed


def engine_facts(config: VllmConfig, capacity: KVCapacity, phases: list[tuple[str, float]]) -> EngineFacts:
    """What READY carries."""
    model, block_size = config.model, config.cache.block_size
    num_cache_tokens = capacity.num_blocks * block_size
    return EngineFacts(
        engine_index=config.engine_index,
        pid=os.getpid(),
        model=model.model,
        dtype=model.dtype,
        device=model.device,
        max_model_len=model.max_model_len,
        vocab_size=model.architecture.vocab_size,
        num_gpu_blocks=capacity.num_blocks,
        block_size=block_size,
        kv_cache_size_tokens=num_cache_tokens,
        kv_cache_max_concurrency=num_cache_tokens / model.max_model_len,
        world_size=config.parallel.world_size,
        data_parallel_size=config.parallel.data_parallel_size,
        phases=phases,
    )


def engine_described(config: VllmConfig, capacity: KVCapacity, described_at: int) -> EngineDescribed:
    """What metrics are labelled and sized by."""
    model, scheduler, cache = config.model, config.scheduler, config.cache
    size = model_size(model.architecture)
    return EngineDescribed(
        engine_index=config.engine_index,
        generation=config.generation,
        model_names=list(model.served_model_names),
        dtype=model.dtype,
        device=model.device,
        max_model_len=model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        num_blocks=capacity.num_blocks,
        block_size=cache.block_size,
        cache_dtype=_cache_dtype(config, capacity),
        kv_cache_bytes=capacity.num_blocks * capacity.block_bytes,
        gpu_memory_utilization=float(cache.gpu_memory_utilization),
        enable_prefix_caching=cache.enable_prefix_caching,
        num_blocks_override=cache.num_gpu_blocks_override or 0,
        world_size=config.parallel.world_size,
        weight_bytes=size.weight_bytes(model.dtype),
        flops_per_token=size.flops_per_token,
        kv_bytes_per_token=capacity.block_bytes // cache.block_size,
        described_at=described_at,
        num_stages=config.parallel.pipeline_parallel_size,
    )


def _cache_dtype(config: VllmConfig, capacity: KVCapacity) -> str:
    """A CPU may hold keys and values in wider numbers than the model's: the size of a block tells."""
    shape = config.model.architecture
    num_numbers = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * config.cache.block_size
    is_wide = capacity.block_bytes == num_numbers * ITEM_BYTES["float32"]
    return "float32" if is_wide else config.model.dtype
