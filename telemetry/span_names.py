"""The names that spans are written with: one table of attributes, so that a rename is one edit.

An attribute has a current name (OpenTelemetry's GenAI and HTTP conventions, or ours where they have none) and
perhaps the one that vLLM writes. Both are written unless `OTEL_SEMCONV_STABILITY_OPT_IN` asks for the current
alone.
"""

from collections.abc import Mapping
from enum import Enum

from vllm_obs.telemetry.span import Value

SCOPE = "vllm_obs"
PROVIDER = "vllm_obs"
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
CURRENT_ONLY = "gen_ai_latest_experimental"

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
"""Routes that run a model, and what the conventions call that."""

REPLY_IDS = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/embeddings": "embd-",
    "/v1/completions": "cmpl-",
    "/v1/responses": "resp_",
    "/v1/messages": "msg_",
}
"""What a reply's id begins with, by route; our id of the HTTP request follows."""


class Key(Enum):
    """What a request's span tells: the current name, and vLLM's (empty where it has none, or the same)."""

    __hash__ = object.__hash__  # Enum's own is Python, and called for each attribute of each request

    OPERATION = ("gen_ai.operation.name", "")
    PROVIDER = ("gen_ai.provider.name", "")
    REQUEST_MODEL = ("gen_ai.request.model", "")
    RESPONSE_MODEL = ("gen_ai.response.model", "")
    RESPONSE_ID = ("gen_ai.response.id", "")
    REQUEST_ID = ("vllm_obs.request.id", "")
    VLLM_REQUEST_ID = ("", "gen_ai.request.id")
    REQUEST_LABEL = ("vllm_obs.request.label", "")
    NUM_CHOICES = ("gen_ai.request.choice.count", "gen_ai.request.n")
    NUM_PROMPTS = ("vllm_obs.request.num_prompts", "")
    STREAM = ("gen_ai.request.stream", "")
    MAX_TOKENS = ("gen_ai.request.max_tokens", "")
    TEMPERATURE = ("gen_ai.request.temperature", "")
    TOP_P = ("gen_ai.request.top_p", "")
    TOP_K = ("gen_ai.request.top_k", "")
    PRIORITY = ("vllm_obs.request.priority", "")
    FINISH_REASONS = ("gen_ai.response.finish_reasons", "")
    FIRST_CHUNK = ("gen_ai.response.time_to_first_chunk", "")
    INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
    CACHED_TOKENS = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
    NUM_SEQUENCES = ("vllm_obs.request.num_sequences", "gen_ai.usage.num_sequences")
    NUM_PREEMPTIONS = ("vllm_obs.num_preemptions", "")
    E2E = ("vllm_obs.latency.e2e", "gen_ai.latency.e2e")
    FIRST_TOKEN = ("vllm_obs.latency.time_to_first_token", "gen_ai.latency.time_to_first_token")
    IN_QUEUE = ("vllm_obs.latency.queue", "gen_ai.latency.time_in_queue")
    IN_PREFILL = ("vllm_obs.latency.prefill", "gen_ai.latency.time_in_model_prefill")
    IN_DECODE = ("vllm_obs.latency.decode", "gen_ai.latency.time_in_model_decode")
    IN_INFERENCE = ("vllm_obs.latency.inference", "gen_ai.latency.time_in_model_inference")
    METHOD = ("http.request.method", "")
    ROUTE = ("http.route", "")
    STATUS = ("http.response.status_code", "")
    REQUEST_BYTES = ("http.request.body.size", "")
    RESPONSE_BYTES = ("http.response.body.size", "")
    ERROR_TYPE = ("error.type", "")


STAGE = "vllm_obs.stage"
STAGE_REASON = "vllm_obs.stage.reason"
STEP = "vllm_obs.step"
ENGINE = "vllm_obs.engine"
SEQUENCE_INDEX = "vllm_obs.sequence.index"
NUM_STEPS = "vllm_obs.num_steps"
FIRST_STEP = "vllm_obs.first_step"
LAST_STEP = "vllm_obs.last_step"
NUM_SCHEDULED_TOKENS = "vllm_obs.num_scheduled_tokens"
NUM_NEW_BLOCKS = "vllm_obs.num_new_blocks"
NUM_PADDED_TOKENS = "vllm_obs.num_padded_tokens"
EXECUTION = "vllm_obs.execution"
PHASE = "vllm_obs.phase"
RANK = "vllm_obs.rank"
PIPELINE_STAGE = "vllm_obs.pipeline.stage"
ROLE = "vllm_obs.role"
RUN = "vllm_obs.run"
BATCH_SIZE = "messaging.batch.message_count"
ACCOUNTED = "vllm_obs.startup.accounted"


class SpanNames:
    """Writes attributes under the names asked for by `OTEL_SEMCONV_STABILITY_OPT_IN`, a list with commas.

    With `gen_ai_latest_experimental` in it the names that vLLM has are left out.
    """

    def __init__(self, opt_in: str = "") -> None:
        chosen = {word.strip() for word in opt_in.split(",")}
        is_current_only = CURRENT_ONLY in chosen
        self._names: dict[Key, tuple[str, ...]] = {
            key: tuple(name for name in key.value[: 1 if is_current_only else 2] if name) for key in Key
        }

    def attributes(self, values: Mapping[Key, Value]) -> dict[str, Value]:
        """The values under all their names; what is None is left out."""
        return {name: value for key, value in values.items() if value is not None for name in self._names[key]}
