"""The fields both completion APIs share, and how they become sampling parameters."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.schema_base import MAX_LABEL_CHARS, WHOLE, Options, Strings, Text, Whole, truncates, whole
from vllm_obs.server.schema_structured import StructuredRequest
from vllm_obs.server.validation import invalid

MAX_PRIORITY = 1_000_000
MAX_BIAS_ENTRIES = 1024


def whole_ids(value: Any) -> Any:
    """`whole` of each id of a list."""
    has_floats = type(value) is list and float in set(map(type, value))
    return list(map(whole, value)) if has_floats else value


def _check_stop(value: Any) -> Any:
    strings = [value] if type(value) is str else value
    if type(strings) is not list or not all(type(text) is str for text in strings):
        raise PydanticCustomError("stop", "should be a string or a list of strings")
    return strings


def _check_bias(value: Any) -> Any:
    if type(value) is not dict or len(value) > MAX_BIAS_ENTRIES:
        raise PydanticCustomError(
            "logit_bias", "should map at most {limit} token ids to numbers", {"limit": MAX_BIAS_ENTRIES}
        )
    if not all(len(key) <= 12 and key.isascii() and key.isdigit() for key in value):
        raise PydanticCustomError("logit_bias", "keys should be token ids")
    return {int(key): bias for key, bias in value.items()}


def _check_salt(value: Any) -> Any:
    if type(value) is not str or not value.isascii() or not value.isprintable():
        raise PydanticCustomError("cache_salt", "should be printable ASCII text")
    return value


Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), WHOLE]
CacheSalt = Annotated[str, BeforeValidator(_check_salt), Field(min_length=1, max_length=MAX_LABEL_CHARS)]
WHOLE_IDS = BeforeValidator(whole_ids)
TokenIds = Annotated[list[int], Field(fail_fast=True), WHOLE_IDS]
StopStrings = Annotated[
    list[str],
    BeforeValidator(_check_stop),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(_check_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]


class StreamOptions(Options):
    """What a stream says beside its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingRequest(StructuredRequest):
    """The fields of /v1/completions and /v1/chat/completions alike. A null field is a field left out."""

    operation: ClassVar[str] = "text_completion"

    model: Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARS)] | None = None
    n: Whole = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Whole = 0
    min_p: float = 0.0
    seed: Whole | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: TokenIds = Field(default_factory=list)
    bad_words: Strings = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Whole = 0
    prompt_logprobs: Whole | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    truncate_prompt_tokens: Whole | None = None
    truncation_side: truncates("left") = None  # type: ignore[valid-type]
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Priority = 0
    cache_salt: CacheSalt | None = None
    user: Text | None = None
    request_id: Text | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    def check_stream_fields(self) -> None:
        """ApiError 400 for fields that only make sense with, or without, a stream."""
        if self.stream_options is not None and self.stream_options.model_fields_set and not self.stream:
            raise invalid("stream_options", "is only allowed together with stream=true")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("prompt_logprobs", "is not available in a stream")

    def sampling_params(
        self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """The engine's parameters; what the two APIs spell differently is passed in."""
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            bad_words=self.bad_words,
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            skip_special_tokens=self.skip_special_tokens,
            spaces_between_special_tokens=self.spaces_between_special_tokens,
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            structured_outputs=self.structured_params(),
        )
