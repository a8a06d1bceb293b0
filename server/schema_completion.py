"""The body of /v1/completions."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.errors import ApiError
from vllm_obs.server.schema_base import Whole
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.validation import invalid

Prompt = str | list[int]


def check_prompts(value: Any) -> list[Prompt]:
    """One prompt or several, text or token ids, as a list; ids are checked against the vocabulary later."""
    is_several = type(value) is list and value and type(value[0]) is not int
    prompts = value if is_several else [value]
    kinds = set(map(type, prompts))
    if kinds - {str, list} or len(kinds) > 1:
        raise PydanticCustomError("prompt", "should be text, token ids, or a list of either")
    for prompt in prompts:
        if not prompt:
            raise PydanticCustomError("empty_prompt", "should not be empty")
        if type(prompt) is list and set(map(type, prompt)) != {int}:
            raise PydanticCustomError("prompt", "token ids should be integers")
    return prompts


PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class CompletionRequest(SamplingRequest):
    """Text (or token ids) in, its continuation out."""

    served_fields: ClassVar[frozenset[str]] = frozenset({"best_of"})

    prompt: Annotated[list[Any], BeforeValidator(check_prompts), WithJsonSchema(PROMPT_SCHEMA)] = Field(
        default=[], validate_default=True
    )
    max_tokens: Whole = 16
    logprobs: Whole | None = None
    echo: bool = False
    best_of: Whole | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_fields_together(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of < self.n:
            raise invalid("best_of", f"should be at least n={self.n}, got {self.best_of}")
        if self.best_of is not None and self.best_of > self.n:
            raise invalid("best_of", "only the value of n is supported", "unsupported")
        if self.max_tokens < 1 and not (self.max_tokens == 0 and self.echo):
            least = "at least 0 with echo" if self.echo else "at least 1 without echo"
            raise ApiError(
                f"max_tokens must be {least}, got {self.max_tokens}.", "invalid_value", param="max_tokens"
            )
        self.check_stream_fields()
        return self

    def params(self) -> SamplingParams:
        """The engine's parameters; echo with logprobs scores the prompt too."""
        prompt_logprobs = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            prompt_logprobs = max(self.logprobs, prompt_logprobs or 0)
        return self.sampling_params(self.max_tokens, self.logprobs, prompt_logprobs)
