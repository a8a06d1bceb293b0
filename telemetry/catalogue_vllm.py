"""VLLM_METRICS: the metrics that vLLM has too, with its names, types, labels and buckets."""

from vllm_obs.telemetry.catalogue_row import ENGINE_LABELS, TOKEN_BUCKETS, Metric

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
WAITING_REASONS = ("capacity", "deferred")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "disk", "p2p")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")

# fmt: off
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)
TOKEN_GAP_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)
# fmt: on
ITERATION_BUCKETS = (1.0, *(float(8 << power) for power in range(12)))

# fmt: off
CACHE_CONFIG_LABELS = (
    "_block_size_resolved", "block_size", "cache_dtype", "cache_hit_alignment_tokens",
    "effective_attention_block_size", "enable_mamba_shared_prefix_checkpoint", "enable_prefix_caching",
    "engine", "gpu_memory_utilization", "hash_block_size", "is_attention_free", "kv_cache_dtype_skip_layers",
    "kv_cache_layout", "kv_cache_max_concurrency", "kv_cache_memory_bytes", "kv_cache_size_tokens",
    "kv_offloading_backend", "kv_offloading_size", "kv_sharing_fast_prefill", "mamba_block_size",
    "mamba_cache_dtype", "mamba_cache_mode", "mamba_page_size_padded", "mamba_ssm_cache_dtype",
    "num_cpu_blocks", "num_gpu_blocks", "num_gpu_blocks_override", "prefix_cache_retention_interval",
    "prefix_caching_hash_algo", "prefix_match_unit", "replayssm_buffer_len", "skip_page_size_padded",
    "sliding_window", "swa_bounded_replay", "use_kda_recoverssm", "use_replayssm", "user_specified_block_size",
)
# fmt: on


def _counter(name: str, text: str, **values: tuple[str, ...]) -> Metric:
    return Metric(f"vllm:{name}_total", "counter", text, (*ENGINE_LABELS, *values), values=values)


def _gauge(name: str, text: str, **values: tuple[str, ...]) -> Metric:
    return Metric(f"vllm:{name}", "gauge", text, (*ENGINE_LABELS, *values), values=values)


def _histogram(name: str, buckets: tuple[float, ...], text: str) -> Metric:
    return Metric(f"vllm:{name}", "histogram", text, ENGINE_LABELS, buckets)


def _estimate(name: str, text: str) -> Metric:
    return Metric(f"vllm:{name}_per_gpu_total", "counter", text, ENGINE_LABELS, when="--enable-mfu-metrics")


def _hidden(name: str, kind: str, text: str) -> Metric:
    is_counter = kind == "counter"
    return Metric(
        f"vllm:{name}",
        "counter" if is_counter else "gauge",
        text,
        ENGINE_LABELS,
        when="--show-hidden-metrics-for-version",
    )


_ESTIMATES = (
    _estimate(
        "estimated_flops", "Floating-point operations of the steps, attention's own left out, over devices."
    ),
    _estimate(
        "estimated_read_bytes", "Bytes of weights and cached keys and values that steps read, over devices."
    ),
    _estimate("estimated_write_bytes", "Bytes of keys and values that steps wrote, over devices."),
)

_LEVELS = (
    _gauge("num_requests_running", "Sequences that are admitted and not released, now."),
    _gauge("num_requests_waiting", "Sequences that wait to be admitted, or again after preemption, now."),
    _gauge(
        "num_requests_waiting_by_reason",
        "Sequences that wait: for capacity, or deferred for something of their own such as a grammar.",
        reason=WAITING_REASONS,
    ),
    _gauge(
        "engine_sleep_state",
        "1 for the state the engine is in; none for an engine that died.",
        sleep_state=SLEEP_STATES,
    ),
    _gauge("kv_cache_usage_perc", "Share of the KV blocks that a sequence holds, 0 to 1."),
)

_COUNTS = (
    _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache, once at the first admission."),
    _counter("prefix_cache_hits", "Prompt tokens found in the prefix cache at the first admission."),
    _counter(
        "external_prefix_cache_queries", "Tokens looked up in a KV cache outside the engine (there is none)."
    ),
    _counter("external_prefix_cache_hits", "Tokens found in a KV cache outside the engine (there is none)."),
    _counter("mm_cache_queries", "Items looked up in the cache of images and sounds (there is none)."),
    _counter("mm_cache_hits", "Items found in the cache of images and sounds (there is none)."),
    _counter("num_preemptions", "Times a running sequence lost its blocks and had to wait again."),
    _counter("prompt_tokens", "Prompt tokens whose keys and values were computed or found, each once."),
    _counter(
        "prompt_tokens_by_source", "Prompt tokens by where their keys and values came from.", source=PROMPT_SOURCES
    ),
    _counter("prompt_tokens_cached", "Prompt tokens that were not computed because a cache had them."),
    _counter(
        "prompt_tokens_cached_by_source",
        "Prompt tokens that a cache had, by where it keeps them.",
        source=CACHE_TIERS,
    ),
    _counter("generation_tokens", "Tokens the engine generated and kept."),
    _counter(
        "request_success",
        "Sequences that ended, by how; aborted and failed ones are in it too.",
        finished_reason=FINISHED_REASONS,
    ),
    Metric(
        "vllm:admission_rejections_total",
        "counter",
        "Requests turned away because too much was queued.",
        ("model_name", "reason"),
        values={"reason": REJECTIONS},
    ),
)

_SIZES = (
    _histogram("request_prompt_tokens", TOKEN_BUCKETS, "Prompt tokens of each ended sequence."),
    _histogram("request_generation_tokens", TOKEN_BUCKETS, "Tokens each ended sequence gave its client."),
    _histogram("iteration_tokens_total", ITERATION_BUCKETS, "Tokens each step computed whose results were used."),
    _histogram(
        "request_max_num_generation_tokens",
        TOKEN_BUCKETS,
        "For each ended sequence, the tokens of the longest sequence of its request.",
    ),
    _histogram("request_params_n", (1.0, 2.0, 5.0, 10.0, 20.0), "Parameter n of each ended sequence's request."),
    _histogram("request_params_max_tokens", TOKEN_BUCKETS, "Most tokens each ended sequence could generate."),
    _histogram(
        "request_num_preemptions", (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0), "Preemptions of each ended sequence."
    ),
    _histogram(
        "request_prefill_kv_computed_tokens",
        TOKEN_BUCKETS,
        "Prompt tokens computed, not cached, before each ended sequence's first token.",
    ),
)

_TIMES = (
    _histogram(
        "time_to_first_token_seconds",
        FIRST_TOKEN_BUCKETS,
        "From a request's first byte to the sampling of its first token; nothing where no token came.",
    ),
    _histogram(
        "inter_token_latency_seconds", TOKEN_GAP_BUCKETS, "Between the sampling of a token and of the next."
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        TOKEN_GAP_BUCKETS,
        "Decode time over tokens after the first; 0 for a sequence with less than two.",
    ),
    _histogram(
        "e2e_request_latency_seconds",
        LATENCY_BUCKETS,
        "From a request's first byte until its reply's last was accepted by the socket, or it ended otherwise.",
    ),
    _histogram(
        "request_queue_time_seconds", LATENCY_BUCKETS, "From the core's taking a sequence to its first step."
    ),
    _histogram(
        "request_inference_time_seconds", LATENCY_BUCKETS, "From the first step to the last token or ending."
    ),
    _histogram(
        "request_prefill_time_seconds", LATENCY_BUCKETS, "From the first step to the first token or ending."
    ),
    _histogram("request_decode_time_seconds", LATENCY_BUCKETS, "From the first to the last token."),
)

_INFO = (
    Metric(
        "vllm:cache_config_info", "gauge", "How the KV cache is laid out; the value is 1.", CACHE_CONFIG_LABELS
    ),
)

_HIDDEN = (
    _hidden("gpu_cache_usage_perc", "gauge", "Old name of vllm:kv_cache_usage_perc."),
    _hidden("num_requests_swapped", "gauge", "Sequences swapped to the host: none, preemption recomputes."),
    _hidden("prompt_tokens_recomputed_total", "counter", "Prompt tokens that preemption had computed again."),
)

VLLM_METRICS: tuple[Metric, ...] = (
    *_ESTIMATES, *_LEVELS, *_COUNTS, *_SIZES, *_TIMES, *_INFO, *_HIDDEN,
)  # fmt: skip
