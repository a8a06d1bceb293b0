"""The body of /v1/responses."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import MAX_COUNT, WHOLE, Count, NumTokens, StrictModel, Text, Unsupported
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_responses_items import Input
from vllm_obs.server.schema_responses_tools import FunctionTools, TextOptions, ToolChoice
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.schema_template import Effort, TemplateKwargs
from vllm_obs.server.validation import invalid

MAX_METADATA = 16
MAX_INCLUDES = 16
LOGPROBS = "message.output_text.logprobs"

REFUSED = ("response_format", "prompt_logprobs", "truncate_prompt_tokens", "return_token_ids")
"""Fields of the other APIs that have no place in this one's reply."""
COPIED = SamplingRequest.model_fields.keys() - {*REFUSED, "n", "stream_options"}


def _check_mode(value: Any) -> Any:
    if value not in (None, "standard"):
        raise PydanticCustomError("unsupported", "models here have one mode: standard")
    return value


def _check_context(value: Any) -> Any:
    if value == "current_turn":
        raise PydanticCustomError("unsupported", "reasoning of all turns is given to the model")
    return value


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
]
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ReasoningOptions(StrictModel):
    """How much the model is to think; its template may know. There are no summaries: reasoning is given whole."""

    effort: Effort | None = None
    mode: Annotated[Any, BeforeValidator(_check_mode)] = None
    context: Annotated[Literal["auto", "current_turn", "all_turns"] | None, BeforeValidator(_check_context)] = None
    summary: Literal["auto", "concise", "detailed"] | None = None

    def fields(self) -> dict[str, Any]:
        """The options as replies have them: as they were asked for."""
        return {"effort": self.effort, "summary": self.summary}


class ResponsesRequest(SamplingRequest):
    """Items of a conversation in, a response out."""

    operation: ClassVar[str] = ChatCompletionRequest.operation

    input: Input = Field(default=[], validate_default=True)
    instructions: str | None = None
    previous_response_id: Text | None = None
    store: bool = True
    background: bool = False
    metadata: Metadata | None = None
    max_output_tokens: NumTokens | None = None
    max_tool_calls: Count | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_COUNT), WHOLE] | None = None
    include: Annotated[list[Includable], Field(max_length=MAX_INCLUDES, fail_fast=True)] = Field(
        default_factory=list
    )
    tools: FunctionTools = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    service_tier: Text | None = None
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: Unsupported = None
    moderation: Unsupported = None

    @model_validator(mode="after")
    def _check_fields_together(self) -> "ResponsesRequest":
        if self.background and not self.store:
            raise invalid("background", "needs store=true, or nobody could ask for the response")
        if self.n != 1:
            raise invalid("n", "a response is one: n should be 1", "unsupported")
        for name in REFUSED:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise invalid(name, "is not a field of responses", "unsupported")
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether the reply tells the log-probabilities of its text."""
        return LOGPROBS in self.include or bool(self.top_logprobs)

    def for_chat(self, messages: Sequence[dict[str, Any]]) -> ChatCompletionRequest:
        """The same question as a chat of these messages; ApiError 400 where nothing in the input is one."""
        if not messages:
            raise invalid("input", "holds nothing to answer", "empty_prompt")
        chat = ChatCompletionRequest.model_validate(
            {
                "messages": messages,
                "max_completion_tokens": self.max_output_tokens,
                "logprobs": self.wants_logprobs,
                "top_logprobs": self.top_logprobs if self.wants_logprobs else None,
                "response_format": self.text.format.for_chat(),
                "chat_template_kwargs": self.chat_template_kwargs,
                "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
                "verbosity": self.text.verbosity,
                "parallel_tool_calls": self.parallel_tool_calls,
                **self._tools_for_chat(),
            }
        )
        return chat.model_copy(update={name: getattr(self, name) for name in COPIED})

    def _tools_for_chat(self) -> dict[str, Any]:
        """Tools and choice as chats have them; of tools that are not allowed the model does not hear."""
        tools, choice = self.tools, self.tool_choice
        if choice is not None and choice.tools:
            names = {tool.name for tool in choice.tools}
            if names - {tool.name for tool in tools}:
                raise invalid("tool_choice", "allows a function that is not among the tools")
            tools = [tool for tool in tools if tool.name in names]
        told = None if choice is None else choice.for_chat()
        return {"tools": [tool.for_chat() for tool in tools], "tool_choice": told}
