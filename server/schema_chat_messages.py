"""The messages of a chat, as clients send them and as templates take them."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.engine.frontend.content_form import Content, ContentForm
from vllm_obs.server.errors import shown
from vllm_obs.server.json_document import parse_inner
from vllm_obs.server.schema_base import StrictModel, Text, Unsupported
from vllm_obs.server.schema_tools import ToolCall, ToolCalls
from vllm_obs.server.validation import invalid

MAX_MESSAGES = 16_384
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


def _check_content(value: Any) -> Any:
    """Text as it is; the texts of a list of parts; parts of other kinds refused by their name."""
    if value is None or type(value) is str:
        return value
    if type(value) is not list:
        raise PydanticCustomError("content", "should be text or a list of parts")
    return [part if type(part) is str else part_text(part) for part in value]


def part_text(
    part: Any,
    texts: Mapping[str, str] = TEXT_PARTS,
    media: Collection[str] = MEDIA_PARTS,
    wanted: str = "text",
) -> str:
    """The text of a part, in the field that `texts` has for its type. One of `media` is refused by its name.

    The error about any other names the types that are `wanted`.
    """
    kind = part.get("type") if type(part) is dict else None
    if type(kind) is str and kind in media:
        raise PydanticCustomError("unsupported", "{kind} parts are not supported by this model", {"kind": kind})
    if type(kind) is not str or kind not in texts:
        raise PydanticCustomError("content", "parts should have type {wanted}", {"wanted": wanted})
    text = part.get(texts[kind])
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
    reasoning_content: str | None = Field(default=None, description="reasoning, by its older name")
    refusal: str | None = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="after")
    def _check_content_is_there(self) -> "ChatMessage":
        if self.content is None:
            self.content = self.refusal
        if self.reasoning is None:
            self.reasoning = self.reasoning_content
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


def check_messages(value: Any) -> Any:
    """A list of at least one and at most MAX_MESSAGES as it is, before each is looked at."""
    if value in (None, []):
        raise PydanticCustomError("empty_prompt", "should hold at least one message")
    if type(value) is list and len(value) > MAX_MESSAGES:
        raise PydanticCustomError(
            "messages",
            "should hold at most {limit} messages, got {num}",
            {"limit": MAX_MESSAGES, "num": len(value)},
        )
    return value


Messages = Annotated[list[ChatMessage], Field(fail_fast=True), BeforeValidator(check_messages)]
