"""The labels of vllm:cache_config_info: how an engine's KV cache is laid out, as text."""

from vllm_obs.telemetry.catalogue_vllm import CACHE_CONFIG_LABELS
from vllm_obs.telemetry.records import EngineDescribed

CONFIG_ENGINE = CACHE_CONFIG_LABELS.index("engine")
"""Where the engine stands among the values."""

_ABSENT = "None"


def cache_config_values(engine: str, described: EngineDescribed) -> tuple[str, ...]:
    """Values in the order of `CACHE_CONFIG_LABELS`; "None" for what this engine does not have."""
    num_tokens = described.num_blocks * described.block_size
    known = {
        "engine": engine,
        "_block_size_resolved": True,
        "block_size": described.block_size,
        "effective_attention_block_size": described.block_size,
        "hash_block_size": described.block_size,
        "cache_dtype": described.cache_dtype,
        "enable_prefix_caching": described.enable_prefix_caching,
        "gpu_memory_utilization": described.gpu_memory_utilization,
        "is_attention_free": False,
        "kv_cache_max_concurrency": round(num_tokens / max(described.max_model_len, 1), 2),
        "kv_cache_memory_bytes": described.kv_cache_bytes,
        "kv_cache_size_tokens": num_tokens,
        "kv_sharing_fast_prefill": False,
        "num_cpu_blocks": 0,
        "num_gpu_blocks": described.num_blocks,
        "num_gpu_blocks_override": described.num_blocks_override or _ABSENT,
        "prefix_caching_hash_algo": "sha256",
    }
    return tuple(str(known.get(label, _ABSENT)) for label in CACHE_CONFIG_LABELS)
