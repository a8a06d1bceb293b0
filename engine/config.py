"""The frozen configuration that every process of one run shares."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_type_hints

from vllm_obs.engine.pooling.kinds import PoolingKind

Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]

ENCODERS = ("BertModel", "RobertaModel", "XLMRobertaModel")
"""Architectures that read a whole text in both directions and generate nothing."""


@dataclass(frozen=True)
class ModelArchitecture:
    """The shape of a decoder or an encoder, read from config.json or GGUF metadata without torch.

    `rope_scaling` is the Hugging Face dictionary (rope_type, factor, …) or None. `sliding_window` is in tokens;
    the layers in `full_attention_layers` do without it. `num_token_types` and `position_offset` (how many rows of
    the position table stand before the first token's) are an encoder's; its norms' epsilon is `rms_norm_eps` too.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    rope_scaling: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    source_dtype: str = "bfloat16"
    num_token_types: int = 0
    position_offset: int = 0

    @property
    def is_encoder(self) -> bool:
        """Whether it makes hidden states only, of whole texts."""
        return self.name in ENCODERS


@dataclass(frozen=True)
class PoolingConfig:
    """How the model makes one vector of a prompt, unless a request says otherwise.

    Vectors may be cut to `matryoshka_dimensions`, to any length where that is empty and `is_matryoshka`.
    """

    kind: PoolingKind = "last"
    normalize: bool = True
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()


@dataclass(frozen=True)
class GenerationConfig:
    """How a request is sampled that does not say; None where the API's own default holds.

    `max_new_tokens` is the most tokens any request gets, whatever it asks for.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Which model, from where, under which names and in which numbers.

    `path` is the resolved local place: a `.gguf` file or a directory. `tokenizer` is the place the tokenizer
    is read from (the same, unless --tokenizer names another). `synthetic_step_time` are the fields of
    StepTimeModel that are not as they stand there.
    """

    model: str
    path: str
    source: Literal["gguf", "hf", "dummy", "synthetic"]
    tokenizer: str
    served_model_names: tuple[str, ...]
    architecture: ModelArchitecture
    dtype: Dtype
    max_model_len: int
    seed: int = 0
    device: Device = "cpu"
    attention_backend: str = "auto"
    quantization: str = "auto"
    chat_template: str | None = None
    max_logprobs: int = 20
    synthetic_step_time: dict[str, Any] = field(default_factory=dict)
    pooling: PoolingConfig = PoolingConfig()
    generation: GenerationConfig = GenerationConfig()

    @property
    def is_synthetic(self) -> bool:
        """Whether no model is run at all."""
        return self.source == "synthetic"

    @property
    def has_grammars(self) -> bool:
        """Whether its tokens can be held to a grammar."""
        return not (self.is_synthetic or self.architecture.is_encoder)


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache. Sizes left None are worked out by the engine from free memory."""

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of one step, and of what may wait for one.

    `max_num_mixed_prefill_tokens` of a step that also decodes may be prompts' (None: all that it has left), or
    `mixed_prefill_tokens_a_decode` for each that decodes if that is more; and more where more sequences begin
    than decode. `stream_interval` is how many tokens a stream gathers before it sends
    a chunk. `max_num_queued_reqs` sequences with `max_num_queued_tokens` prompt tokens may wait for their first
    step; None is no bound. Of these bounds each of `num_clients` API servers has its share. With
    `async_scheduling` a step is planned and begun before the one before it has answered.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    max_num_mixed_prefill_tokens: int | None = None
    mixed_prefill_tokens_a_decode: float = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    num_clients: int = 1
    async_scheduling: bool = False


@dataclass(frozen=True)
class ParallelConfig:
    """How many workers and engines there are and how workers are reached.

    Of an engine's `world_size` ranks, `stage * tensor_parallel_size + shard` is a shard of a pipeline stage
    (a synthetic engine's are neither). `data_parallel_rank` is this server's own engine among
    `data_parallel_size` where somebody else balances between servers; None where this server owns them all and
    `data_parallel_balancer` (`engine/balancer.py`) chooses among them, None the one that suits the API servers.
    Ranks are spread over `nnodes` hosts in equal runs, and `node_rank` 0, at `master_addr`, has the engine. Hosts
    wait `node_timeout` seconds for each other, and trust who has the key in `cluster_key_file` (None: in the
    environment).
    """

    distributed_executor_backend: Literal["uni", "mp", "ray"] = "uni"
    world_size: int = 1
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

    @property
    def output_rank(self) -> int:
        """The rank whose replies are the step's: the first shard of the last stage."""
        return (self.pipeline_parallel_size - 1) * self.tensor_parallel_size


@dataclass(frozen=True)
class ObservabilityConfig:
    """What is logged and recorded. `recorder` is a ring in the run directory, memory, or null for nothing."""

    disable_log_stats: bool = False
    aggregate_engine_logging: bool = False
    enable_log_requests: bool = False
    recorder: Literal["ring", "memory", "null"] = "memory"


@dataclass(frozen=True)
class GraphConfig:
    """Which decode steps run as CUDA graphs, on a GPU: of `capture_sizes` rows, or of sizes that waste little.

    Up to `max_capture_size`; none at all where eager is enforced.
    """

    enforce_eager: bool = False
    capture_sizes: tuple[int, ...] | None = None
    max_capture_size: int | None = None


@dataclass(frozen=True)
class VllmConfig:
    """All of it. `run_dir` is this run's own 0700 directory.

    Each engine of a run has its own: `engine_index` says which it is, `generation` counts its restarts.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    observability: ObservabilityConfig
    run_dir: str = ""
    generation: int = 0
    engine_index: int = 0
    graphs: GraphConfig = GraphConfig()


def to_wire(config: Any) -> dict[str, Any]:
    """A dataclass as nested dictionaries of plain values, ready for msgpack."""
    return {
        field.name: to_wire(value) if is_dataclass(value) else value
        for field in fields(config)
        for value in [getattr(config, field.name)]
    }


def from_wire(kind: type[Any], values: dict[str, Any]) -> Any:
    """The dataclass of that kind rebuilt from `to_wire`'s dictionaries (lists become tuples)."""
    hints = get_type_hints(kind)
    built: dict[str, Any] = {}
    for name, value in values.items():
        hint = hints[name]
        if is_dataclass(hint):
            built[name] = from_wire(hint, value)  # type: ignore[arg-type]
        else:
            built[name] = tuple(value) if isinstance(value, list) else value
    return kind(**built)
