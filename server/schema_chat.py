"""The body of /v1/chat/completions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.engine.frontend.content_form import Content, ContentForm
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.errors import shown
from vllm_obs.server.json_document import parse_inner
from vllm_obs.server.schema_base import StrictModel, Text
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.schema_tools import ToolCall, ToolCalls, ToolChoice, Tools
from vllm_obs.server.tool_calls.registry import MakeParser
from vllm_obs.server.tool_use import ToolUse, tool_use
from vllm_obs.server.validation import invalid

MAX_MESSAGES = 16_384
MAX_TEMPLATE_KWARGS = 64
MAX_TEMPLATE_KWARG_CHARS = 16_384
MAX_DOCUMENTS = 1024
MAX_ARGUMENTS_DEPTH = 64

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
MEDIA_PARTS = {
    "image_url",
    "input_image",
    "image_embeds",
    "image_pil",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
}
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


def _check_content(value: Any) -> Any:
    """Text as it is; the texts of a list of parts; parts of other kinds refused by their name."""
    if value is None or type(value) is str:
        return value
    if type(value) is not list:
        raise PydanticCustomError("content", "should be text or a list of parts")
    return list(map(_part_text, value))


def _part_text(part: Any) -> str:
    if type(part) is str:
        return part
    kind = part.get("type") if type(part) is dict else None
    if type(kind) is str and kind in MEDIA_PARTS:
        raise PydanticCustomError("unsupported", "{kind} parts are not supported by this model", {"kind": kind})
    if type(kind) is not str or kind not in TEXT_PARTS:
        raise PydanticCustomError("content", "parts should have type text")
    text = part.get(TEXT_PARTS[kind])
    if type(text) is not str:
        raise PydanticCustomError("content", "text parts should hold a text")
    return text


CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "null"},
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ]
}


class ChatMessage(StrictModel):
    """One message of a conversation; only an assistant's may have no content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Content | None, BeforeValidator(_check_content), WithJsonSchema(CONTENT_SCHEMA)] = None
    name: Text | None = None
    tool_call_id: Text | None = None
    tool_calls: ToolCalls | None = None
    reasoning: str | None = None

    @model_validator(mode="after")
    def _check_content_is_there(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError(
                "content", "content should be there for the role {role}", {"role": self.role}
            )
        return self

    @property
    def num_side_chars(self) -> int:
        """How many characters it has beside its content."""
        arguments = sum(len(call.function.arguments or "") for call in self.tool_calls or ())
        return arguments + len(self.reasoning or "")

    def for_template(self, form: ContentForm = ContentForm.TEXT) -> dict[str, Any]:
        """The message as templates know it, its content in the form that this one takes."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": form.of(self.content or ""),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        if self.reasoning is not None:
            message["reasoning_content"] = message["reasoning"] = self.reasoning
        return message


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    """A call as templates know it: its arguments are an object. ApiError 400 where they are none."""
    try:
        arguments = parse_inner(call.function.arguments or "null", MAX_ARGUMENTS_DEPTH)
    except ValueError:
        arguments = ""
    if not isinstance(arguments, dict | None):
        told = f"the arguments of a call of {shown(call.function.name)} are no JSON object, or deeper than "
        raise invalid("messages", f"{told}{MAX_ARGUMENTS_DEPTH} levels")
    function = {"name": call.function.name, "arguments": arguments or {}}
    return {"id": call.id, "type": call.type, "function": function}


def _check_messages(value: Any) -> Any:
    if value in (None, []):
        raise PydanticCustomError("empty_prompt", "should hold at least one message")
    if type(value) is list and len(value) > MAX_MESSAGES:
        raise PydanticCustomError(
            "messages",
            "should hold at most {limit} messages, got {num}",
            {"limit": MAX_MESSAGES, "num": len(value)},
        )
    return value


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


Messages = Annotated[list[ChatMessage], Field(fail_fast=True), BeforeValidator(_check_messages)]
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


class TemplateRequest(StrictModel):
    """The fields that make a prompt out of messages. `documents` are texts by name, such as title and text."""

    served_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    messages: Messages = Field(default=[], validate_default=True)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    documents: Documents | None = None

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
        return {
            **self.chat_template_kwargs,
            **documents,
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
            "continue_final_message": self.continue_final_message,
        }


class ChatCompletionRequest(SamplingRequest, TemplateRequest):
    """A conversation in, the next message out."""

    operation: ClassVar[str] = "chat"

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    echo: bool = False

    @model_validator(mode="after")
    def _check_fields_together(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed together with logprobs=true")
        if self.echo:
            raise invalid("echo", "is not supported for chats", "unsupported")
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) == 0:
                raise invalid(name, "should be at least 1, got 0")
        self.check_stream_fields()
        return self

    def object_name(self) -> str:
        """What the reply calls itself."""
        return "chat.completion.chunk" if self.stream else "chat.completion"

    def template_options(self) -> dict[str, Any]:
        """With the tools, if there are any."""
        options = super().template_options()
        if self.tools:
            options["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools]
        return options

    def tool_use(self, make_parser: MakeParser | None) -> ToolUse:
        """What its tools come to with the server's parser. ApiError 400 where they or another form do not fit."""
        use = tool_use(self.tools or (), self.tool_choice, not self.parallel_tool_calls, make_parser)
        if use.schema is not None and self.asked_form():
            raise invalid(self.asked_form(), "excludes a tool_choice that leaves nothing but calls")
        return use

    def params(self) -> SamplingParams:
        """The engine's parameters; max_completion_tokens wins over its older name."""
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.sampling_params(
            max_tokens, (self.top_logprobs or 0) if self.logprobs else None, self.prompt_logprobs
        )
