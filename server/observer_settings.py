"""What the Observer is told of the server that starts it."""

from typing import Any

from vllm_obs import __version__
from vllm_obs.engine.config import VllmConfig
from vllm_obs.server.config import ServerConfig

PORT_DISTANCE = 1000
MAX_PORT = 65_535


def observer_settings(config: VllmConfig, server: ServerConfig) -> dict[str, Any]:
    """Plain values; the port comes with the address, once that is known. OTEL_… variables are the Observer's own.

    The settings of the run that people want to see are among them; keys and prompts are not.
    """
    model, scheduler, cache = config.model, config.scheduler, config.cache
    return {
        "run_dir": config.run_dir,
        "inspect_host": server.inspect_host,
        "model_name": model.model,
        "served_model_names": list(model.served_model_names),
        "max_model_len": model.max_model_len,
        "otlp_endpoint": server.otlp_traces_endpoint or "",
        "disable_log_stats": config.observability.disable_log_stats,
        "enable_mfu_metrics": server.enable_mfu_metrics,
        "show_hidden_metrics": server.show_hidden_metrics_for_version is not None,
        "detail_level": server.trace_detail_level,
        "sample_rate": server.sampling.rate,
        "stall_timeout": server.stall_timeout,
        "slo": server.slo,
        "accounts": list(dict.fromkeys(server.accounts)),
        "profiler_dir": server.profiler_config.directory,
        "version": __version__,
        "dtype": model.dtype,
        "device": model.device,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "scheduling_policy": scheduler.policy,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "distributed_executor_backend": config.parallel.distributed_executor_backend,
    }


def inspect_port(server: ServerConfig, port: int | None) -> int:
    """The port that was asked for, else one at a fixed distance from the API's; 0 for any free one."""
    if server.inspect_port is not None:
        return server.inspect_port
    wanted = 0 if port is None else port + PORT_DISTANCE
    return wanted if wanted <= MAX_PORT else 0
