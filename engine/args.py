"""The engine's flags as one dataclass, checked once and turned into the frozen configuration."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from vllm_obs.engine.config import (
    CacheConfig,
    Device,
    Dtype,
    GraphConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_obs.engine.device import detect_device
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flag_checks import check_flags
from vllm_obs.engine.frontend.template_file import read_template
from vllm_obs.engine.model.context_length import context_length
from vllm_obs.engine.parallel_checks import check_parallel
from vllm_obs.engine.step_defaults import AskedSteps, is_async, mixed_prefill_tokens, step_limits

SERVED_MAX_NUM_QUEUED_REQS = 2048
"""A server's default: as many sequences as one request may have, so that an idle server takes each request."""
_DTYPES: dict[str, Dtype] = {
    "auto": "bfloat16",
    "bfloat16": "bfloat16",
    "half": "float16",
    "float16": "float16",
    "float": "float32",
    "float32": "float32",
}


@dataclass
class EngineArgs:
    """What `vllm-obs serve` and `LLM(...)` take, under vLLM's names; None is worked out."""

    model: str | None = None
    load_format: str = "auto"
    model_loader_extra_config: dict[str, Any] | None = None
    tokenizer: str | None = None
    served_model_name: str | list[str] | None = None
    dtype: str = "auto"
    quantization: str = "auto"
    max_model_len: int | None = None
    max_logprobs: int = 20
    chat_template: str | None = None
    pooler_config: dict[str, Any] | None = None
    override_pooler_config: dict[str, Any] | None = None
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] | None = None
    seed: int = 0
    device: str = "auto"
    attention_backend: str = "auto"
    enforce_eager: bool = False
    cudagraph_capture_sizes: list[int] | None = None
    max_cudagraph_capture_size: int | None = None
    distributed_executor_backend: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int | None = None
    data_parallel_balancer: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    cluster_key_file: str | None = None
    node_timeout: float = 300.0
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = True
    max_num_mixed_prefill_tokens: int | None = None
    scheduling_policy: str = "fcfs"
    async_scheduling: bool | None = None
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    enable_log_requests: bool = False
    disable_log_stats: bool = False
    aggregate_engine_logging: bool = False

    def create_engine_config(self) -> VllmConfig:
        """Check everything, find the model, and freeze it. Raises ConfigError, one line, number and limit."""
        # Imported here: --help needs the flags only.
        from vllm_obs.engine.generation_defaults import generation_config
        from vllm_obs.engine.model.source import ModelSource, resolve_model, resolve_tokenizer
        from vllm_obs.engine.pooling.override import overridden

        check_flags(vars(self))
        step_time, num_ranks = self._synthetic()
        device = detect_device("cpu" if self.load_format == "synthetic" else self.device)
        source: ModelSource = resolve_model(self.model, self.load_format)
        is_encoder = source.architecture.is_encoder
        max_model_len = context_length(self.max_model_len, source.architecture, source.default_length)
        pooler_config = {**(self.override_pooler_config or {}), **(self.pooler_config or {})}
        template = source.chat_template if self.chat_template is None else read_template(self.chat_template)
        model = ModelConfig(
            model=source.model,
            path=source.path,
            source=source.source,
            tokenizer=resolve_tokenizer(self.tokenizer) if self.tokenizer else source.path,
            served_model_names=self._served_names(source.model),
            architecture=source.architecture,
            dtype="float32" if is_encoder and self.dtype == "auto" else _DTYPES[self.dtype],
            max_model_len=max_model_len,
            seed=self.seed,
            device=device,
            attention_backend=self.attention_backend,
            quantization=self.quantization,
            chat_template=template,
            max_logprobs=self._max_logprobs(source.architecture.vocab_size),
            synthetic_step_time=step_time,
            pooling=overridden(source.pooling, pooler_config),
            generation=generation_config(
                self.generation_config, source.path, self.override_generation_config or {}
            ),
        )
        whole = replace(self, enable_chunked_prefill=False, enable_prefix_caching=False) if is_encoder else self
        parallel = self._parallel(num_ranks)
        check_parallel(parallel, source.architecture)
        if parallel.nnodes > 1:
            from vllm_obs.engine.nodes.cluster_key import read_cluster_key

            read_cluster_key(parallel.cluster_key_file)
        scheduler = whole._scheduler(device, max_model_len)
        scheduler = replace(scheduler, async_scheduling=is_async(self.async_scheduling, device, parallel))
        config = VllmConfig(model, whole._cache(), scheduler, parallel, self._observability())
        graphs = self._graphs(scheduler.max_num_seqs)
        return replace(config, engine_index=self.data_parallel_rank or 0, graphs=graphs)

    def _max_logprobs(self, vocab_size: int) -> int:
        return vocab_size if self.max_logprobs == -1 else min(self.max_logprobs, vocab_size)

    def _served_names(self, model: str) -> tuple[str, ...]:
        names = self.served_model_name or [model]
        names = [names] if isinstance(names, str) else names
        for name in names:
            if not name or len(name) > 256:
                raise ConfigError(f"a served model name has {len(name)} characters; between 1 and 256 are allowed")
        return tuple(dict.fromkeys(names))

    def _cache(self) -> CacheConfig:
        return CacheConfig(
            block_size=self.block_size,
            gpu_memory_utilization=self.gpu_memory_utilization,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            num_gpu_blocks_override=self.num_gpu_blocks_override,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def _scheduler(self, device: Device, max_model_len: int) -> SchedulerConfig:
        asked = AskedSteps(self.max_num_seqs, self.max_num_batched_tokens, self.enable_chunked_prefill)
        num_seqs, num_tokens = step_limits(asked, device, max_model_len)
        # A synthetic engine's steps are those of a GPU.
        like: Device = "cuda" if self.load_format == "synthetic" else device
        num_mixed, num_mixed_a_decode = mixed_prefill_tokens(self.max_num_mixed_prefill_tokens, like)
        return SchedulerConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_tokens,
            enable_chunked_prefill=self.enable_chunked_prefill,
            max_num_mixed_prefill_tokens=num_mixed,
            mixed_prefill_tokens_a_decode=num_mixed_a_decode,
            policy=cast(Literal["fcfs", "priority"], self.scheduling_policy),
            stream_interval=self.stream_interval,
            max_num_queued_reqs=self.max_num_queued_reqs,
            max_num_queued_tokens=self.max_num_queued_tokens,
        )

    def _graphs(self, max_num_seqs: int) -> GraphConfig:
        sizes = self.cudagraph_capture_sizes
        largest = min(max_num_seqs, self.max_cudagraph_capture_size or max_num_seqs)
        if sizes is not None and not any(1 <= size <= largest for size in sizes):
            said = " ".join(map(str, sizes[:8]))
            raise ConfigError(f"--cudagraph-capture-sizes {said}: none is between 1 and {largest}")
        if sizes is not None and min(sizes) < 1:
            raise ConfigError(f"--cudagraph-capture-sizes {min(sizes)} is not at least 1")
        return GraphConfig(
            enforce_eager=self.enforce_eager,
            capture_sizes=None if sizes is None else tuple(sorted(set(sizes))),
            max_capture_size=self.max_cudagraph_capture_size,
        )

    def _parallel(self, num_synthetic_ranks: int) -> ParallelConfig:
        world_size = max(num_synthetic_ranks, self.tensor_parallel_size * self.pipeline_parallel_size)
        backend = self.distributed_executor_backend or ("uni" if world_size == 1 else "mp")
        return ParallelConfig(
            distributed_executor_backend=cast(Literal["uni", "mp", "ray"], backend),
            world_size=world_size,
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            data_parallel_size=self.data_parallel_size,
            data_parallel_rank=self.data_parallel_rank,
            data_parallel_balancer=(self.data_parallel_balancer or "").replace("-", "_") or None,
            nnodes=self.nnodes,
            node_rank=self.node_rank,
            master_addr=self.master_addr,
            master_port=self.master_port,
            cluster_key_file=self.cluster_key_file,
            node_timeout=self.node_timeout,
        )

    def _synthetic(self) -> tuple[dict[str, Any], int]:
        """The fields of StepTimeModel that were given, and how many ranks there are."""
        if self.load_format != "synthetic":
            if self.model_loader_extra_config:
                raise ConfigError("--model-loader-extra-config goes with --load-format synthetic only")
            return {}, 1
        from vllm_obs.engine.synthetic.settings import read_settings

        return read_settings(self.model_loader_extra_config or {}, self.distributed_executor_backend or "uni")

    def _observability(self) -> ObservabilityConfig:
        return ObservabilityConfig(
            disable_log_stats=self.disable_log_stats,
            aggregate_engine_logging=self.aggregate_engine_logging,
            enable_log_requests=self.enable_log_requests,
        )


def engine_args_from(values: dict[str, Any]) -> EngineArgs:
    """The EngineArgs of those of the values that are its own."""
    names = {field.name for field in fields(EngineArgs)}
    return EngineArgs(**{name: value for name, value in values.items() if name in names})
