"""What a command-line flag is, how its text becomes a value, and the table of the engine's flags."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

FlagValue = Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def whole_number(text: str) -> int:
    """An integer written in digits."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"{text[:64]!r} is not a whole number")
    return int(text)


def number(text: str) -> float:
    """A finite decimal number."""
    if not re.fullmatch(r"[+-]?(\d{1,18}(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?", text, re.ASCII):
        raise ValueError(f"{text[:64]!r} is not a number")
    return float(text)


def human_size(text: str) -> int:
    """A count with an optional suffix: 4k is 4,000 and 4K is 4,096; decimals go with the small letters only."""
    match = _SIZE.fullmatch(text)
    if match is None or len(text) > 18:
        raise ValueError(f"{text[:64]!r} is not a count such as 4096, 4k (4,000), 4K (4,096) or 1M")
    digits, suffix = match.groups()
    if "." in digits and not suffix.islower():
        raise ValueError(f"{text!r} is not a whole number; decimals need a suffix of powers of 1,000: k, m, g, t")
    base = 1000 if suffix.islower() else 1024
    return round(float(digits) * base ** _POWERS[suffix.lower()]) if suffix else int(digits)


def json_strings(text: str) -> tuple[str, ...]:
    """A JSON array of strings."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{text[:64]!r} is not a JSON array of strings")
    return tuple(values)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{text[:64]!r} is not a JSON object")
    return value


@dataclass(frozen=True)
class Flag:
    """One flag: `name` is the field it sets (max_model_len for --max-model-len).

    kind: `value` takes one word, `values` one or several, `switch` none (--x), `pair` none (--x, --no-x).
    `default_text` is what help shows where the default is worked out; otherwise the field's default is shown.
    What `is_hidden` is for measurements and tests, and in no help.
    """

    name: str
    group: str
    help: str
    kind: Literal["value", "values", "switch", "pair"] = "value"
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    metavar: str = ""
    default_text: str = ""
    is_hidden: bool = False

    @property
    def option(self) -> str:
        """The flag as it is typed."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_boolean(self) -> bool:
        """Whether it takes no word."""
        return self.kind in ("switch", "pair")

    @property
    def placeholder(self) -> str:
        """What stands for its word in help."""
        return "{" + ",".join(self.choices) + "}" if self.choices else self.metavar or self.name.upper()

    def read(self, text: str) -> FlagValue:
        """One word as a value. Raises ValueError with a plain reason."""
        value = self.parse(text)
        if self.choices and value not in self.choices:
            raise ValueError(f"{text[:64]!r} is not one of {', '.join(self.choices)}")
        return value


ENGINE_FLAGS = (
    Flag("load_format", "Model",
         "Where weights come from; dummy makes random ones for a config, synthetic runs no model at all.",
         choices=("auto", "safetensors", "gguf", "dummy", "synthetic")),
    Flag("model_loader_extra_config", "Model", "How long the steps of a synthetic engine take, and num_ranks.",
         parse=json_object, metavar="JSON"),
    Flag("tokenizer", "Model", "Directory, .gguf file or hub id of the tokenizer.", metavar="PATH",
         default_text="the model's"),
    Flag("served_model_name", "Model", "Names clients may call the model by; replies carry the first.", "values",
         metavar="NAME", default_text="MODEL"),
    Flag("dtype", "Model", "Numbers to compute in; auto is bfloat16.",
         choices=("auto", "bfloat16", "float16", "float32", "half", "float")),
    Flag("quantization", "Model",
         "auto multiplies with a GGUF file's own 4 and 8 bits (Q4_0, Q4_1, Q8_0) where a CPU's kernels can and "
         "--dtype is not float32; none turns weights into --dtype.", choices=("auto", "none")),
    Flag("max_model_len", "Model", "Longest prompt and completion together, in tokens (4k, 8K).",
         parse=human_size, metavar="TOKENS", default_text="the model's"),
    Flag("max_logprobs", "Model", "Most log-probabilities a request may ask for at a position; -1 for all.",
         parse=whole_number, metavar="N"),
    Flag("chat_template", "Model", "File with a Jinja chat template, or the template itself.", metavar="FILE",
         default_text="the model's"),
    Flag("pooler_config", "Model",
         'How prompts become vectors: {"pooling_type": "MEAN", "normalize": true}, with LAST, MEAN or CLS.',
         parse=json_object, metavar="JSON", default_text="the model's"),
    Flag("override_pooler_config", "Model", "vLLM's older name of --pooler-config.", parse=json_object,
         metavar="JSON", default_text="the model's"),
    Flag("generation_config", "Model",
         "Where the sampling of requests that do not say comes from: auto is the model's generation_config.json, "
         "vllm is none of it, else a directory.", metavar="PATH"),
    Flag("override_generation_config", "Model",
         'The same, said here: {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 512}.', parse=json_object,
         metavar="JSON"),
    Flag("seed", "Model", "Seed of random weights.", parse=whole_number, metavar="N"),
    Flag("device", "Engine", "auto takes CUDA where there is an NVIDIA device.", choices=("auto", "cpu", "cuda")),
    Flag("attention_backend", "Engine",
         "How attention and what surrounds it is computed; auto is triton on a GPU, compiled kernels on a CPU.",
         choices=("auto", "torch", "triton")),
    Flag("enforce_eager", "Engine", "No CUDA graphs: every step on a GPU is queued kernel by kernel.", "pair"),
    Flag("cudagraph_capture_sizes", "Engine", "Batch sizes whose decode steps run as CUDA graphs.", "values",
         parse=human_size, metavar="N", default_text="1 2 4 and multiples of 8, 16 and 32"),
    Flag("max_cudagraph_capture_size", "Engine", "The largest of these batch sizes.", parse=human_size,
         metavar="N", default_text="--max-num-seqs"),
    Flag("distributed_executor_backend", "Parallel",
         "Worker inside the engine process, a process for each rank, or Ray actors.", choices=("uni", "mp", "ray"),
         default_text="uni for one rank, else mp"),
    Flag("tensor_parallel_size", "Parallel", "Ranks that each layer is divided over.", parse=whole_number,
         metavar="N"),
    Flag("pipeline_parallel_size", "Parallel", "Stages, each with its share of the layers.", parse=whole_number,
         metavar="N"),
    Flag("data_parallel_size", "Parallel", "Engines, each with the whole model.", parse=whole_number, metavar="N"),
    Flag("data_parallel_rank", "Parallel",
         "Run only this one of the engines: each has a server of its own, behind a balancer of yours.",
         parse=whole_number, metavar="RANK", default_text="all of them"),
    Flag("data_parallel_balancer", "Parallel",
         "Which engine a request goes to: the least loaded, the better of two, in turn, or the one that "
         "has its prefix, unless that one has more than its share.",
         choices=("least-loaded", "power-of-two", "round-robin", "prefix-affine"),
         default_text="power-of-two with several API servers, else least-loaded"),
    Flag("nnodes", "Parallel", "Hosts that the ranks of an engine are spread over.", parse=whole_number,
         metavar="N"),
    Flag("node_rank", "Parallel", "Which of the hosts this is; 0 serves.", parse=whole_number, metavar="RANK"),
    Flag("master_addr", "Parallel", "Address of host 0, which the others reach it by.", metavar="ADDRESS"),
    Flag("master_port", "Parallel", "First of the ports of host 0 for the others.", parse=whole_number,
         metavar="PORT"),
    Flag("cluster_key_file", "Parallel", "File with the secret that the hosts of a run share.", metavar="FILE",
         default_text="VLLM_OBS_CLUSTER_KEY holds it"),
    Flag("node_timeout", "Parallel", "How long the hosts of a run wait for each other.", parse=number,
         metavar="SECONDS"),
    Flag("block_size", "Cache", "Tokens in one block of the KV cache.", parse=whole_number, metavar="TOKENS"),
    Flag("gpu_memory_utilization", "Cache",
         "Share of a GPU's memory to use; on a CPU, of what is free, at most half and 4 GiB.", parse=number,
         metavar="FRACTION"),
    Flag("kv_cache_memory_bytes", "Cache", "Size of the KV cache (512M, 4G).", parse=human_size, metavar="BYTES",
         default_text="from free memory"),
    Flag("num_gpu_blocks_override", "Cache", "Number of KV blocks, whatever memory is free.", parse=whole_number,
         metavar="N", default_text="from free memory"),
    Flag("enable_prefix_caching", "Cache", "Reuse the blocks of prompts that begin alike.", "pair"),
    Flag("max_num_seqs", "Scheduler", "Most sequences that run in one step.", parse=human_size, metavar="N",
         default_text="256 on a GPU, 64 on a CPU"),
    Flag("max_num_batched_tokens", "Scheduler", "Most tokens computed in one step.", parse=human_size,
         metavar="TOKENS", default_text="2048 on a GPU, 256 on a CPU"),
    Flag("enable_chunked_prefill", "Scheduler", "Split long prompts over several steps.", "pair"),
    Flag("max_num_mixed_prefill_tokens", "Scheduler",
         "Most prompt tokens of a step in which others decode, unless more sequences begin than decode: fewer "
         "keep the time between two tokens short, more the time to the first.", parse=human_size, metavar="TOKENS",
         default_text="as many as fit; on a CPU 24, or 3 for each two that decode"),
    Flag("scheduling_policy", "Scheduler", "First come first served, or by the request's priority.",
         choices=("fcfs", "priority")),
    Flag("async_scheduling", "Scheduler",
         "Plan and begin a step before the last one has answered, so that a GPU does not wait for the scheduler; "
         "one rank only. On a CPU it gains nothing: scheduler and model share the cores.", "pair",
         default_text="on for one GPU, off on a CPU"),
    Flag("max_num_queued_reqs", "Scheduler",
         "Most sequences that wait for their first step; more get 429. 0: none beside those the next step takes.",
         parse=human_size, metavar="N", default_text="2048: as many as one request may have"),
    Flag("max_num_queued_tokens", "Scheduler", "Most prompt tokens that wait for their first step; more get 429.",
         parse=human_size, metavar="TOKENS", default_text="no bound"),
    Flag("stream_interval", "Scheduler", "Tokens between two chunks of a stream; the first comes at once.",
         parse=whole_number, metavar="TOKENS"),
    Flag("enable_log_requests", "Logging", "Log the id and lengths of each request, never its text.", "pair"),
    Flag("disable_log_stats", "Logging", "No statistics line every few seconds.", "switch"),
    Flag("aggregate_engine_logging", "Logging", "One statistics line for all engines.", "switch"),
)  # fmt: skip
"""The flags of the engine; each sets the field of `EngineArgs` with its name, where the default stands."""
