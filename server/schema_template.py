"""The fields of a body that make a prompt out of messages."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import StrictModel
from vllm_obs.server.schema_chat_messages import Messages
from vllm_obs.server.schema_tools import AllowedToolChoice, ToolChoice, ToolDefinition, Tools
from vllm_obs.server.validation import invalid

MAX_TEMPLATE_KWARGS = 64
MAX_TEMPLATE_KWARG_CHARS = 16_384
MAX_DOCUMENTS = 1024

RESERVED_KWARGS = {
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "tokenizer",
    "return_dict",
    "return_tensors",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "self",
}


def _check_kwargs(value: Any) -> Any:
    if type(value) is not dict:
        raise PydanticCustomError("chat_template_kwargs", "should be an object")
    reserved = sorted(RESERVED_KWARGS & value.keys())
    if reserved:
        raise PydanticCustomError("unsupported", "{name} cannot be set here", {"name": reserved[0]})
    if len(value) > MAX_TEMPLATE_KWARGS or len(str(value)) > MAX_TEMPLATE_KWARG_CHARS:
        raise PydanticCustomError("chat_template_kwargs", "is too large")
    if not all(name.isidentifier() for name in value):
        raise PydanticCustomError("chat_template_kwargs", "names should be identifiers")
    return value


def _check_documents(value: Any) -> Any:
    if type(value) is not list or len(value) > MAX_DOCUMENTS:
        raise PydanticCustomError("documents", "should be a list of at most {limit}", {"limit": MAX_DOCUMENTS})
    if not all(type(item) is dict and all(type(text) is str for text in item.values()) for item in value):
        raise PydanticCustomError("documents", "should be objects whose values are texts")
    return value


TemplateKwargs = Annotated[
    dict[str, Any],
    BeforeValidator(_check_kwargs),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]


Documents = Annotated[
    list[dict[str, Any]],
    BeforeValidator(_check_documents),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": MAX_DOCUMENTS,
            "items": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ),
]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think; `max` is vLLM's."""
Verbosity = Literal["low", "medium", "high"]


class TemplateRequest(StrictModel):
    """The fields that make a prompt out of messages. `documents` are texts by name, such as title and text."""

    served_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    messages: Messages = Field(default=[], validate_default=True)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    documents: Documents | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None

    @model_validator(mode="after")
    def _check_template_fields(self) -> "TemplateRequest":
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise invalid("continue_final_message", "excludes add_generation_prompt=true")
        if self.add_special_tokens:
            raise invalid("add_special_tokens", "the chat template adds them already", "unsupported")
        return self

    def template_options(self) -> dict[str, Any]:
        """The keyword arguments of `ChatTemplate.encode`."""
        documents = {"documents": self.documents} if self.documents else {}
        tools = [tool.model_dump(exclude_none=True) for tool in self.offered_tools()]
        return {
            **self._hints(),
            **documents,
            **({"tools": tools} if tools else {}),
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
            "continue_final_message": self.continue_final_message,
        }

    def _hints(self) -> dict[str, Any]:
        """What a template may know how to follow; an effort is also whether to think, as with vLLM."""
        effort = self.reasoning_effort
        thinks = {} if effort is None else {"enable_thinking": effort != "none"}
        named = {"reasoning_effort": effort, "verbosity": self.verbosity}
        told = {name: value for name, value in named.items() if value is not None}
        return {**thinks, **self.chat_template_kwargs, **told}

    def offered_tools(self) -> list[ToolDefinition]:
        """The tools that may be called: the model hears of no others. ApiError 400 where it allows more."""
        tools, choice = self.tools or [], self.tool_choice
        if not isinstance(choice, AllowedToolChoice):
            return tools
        names = {tool.function.name for tool in choice.allowed_tools.tools}
        if names - {tool.function.name for tool in tools}:
            raise invalid("tool_choice", "allows a function that is not among the tools")
        return [tool for tool in tools if tool.function.name in names]
