"""The items that clients of /v1/responses send in, and how they are kept."""

import uuid
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import StrictModel, Text
from vllm_obs.server.schema_chat_messages import MEDIA_PARTS, TEXT_PARTS, part_text
from vllm_obs.server.schema_tools import FunctionName

MAX_INPUT_ITEMS = 4096
MAX_PARTS = 4096

Item = dict[str, Any]
"""An item as replies have it."""

TEXT_OF_PART = {**TEXT_PARTS, "reasoning_text": "text", "summary_text": "text"}
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""What an item's id begins with, by its type."""

NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    "item_reference": ("id",),
}
"""The types of items that can be read here, and the fields that each must have."""


class Part(NamedTuple):
    """A text in a list of contents, with its type."""

    type: str
    text: str


def new_item_id(kind: str) -> str:
    """A new id for an item of this type."""
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def _check_type(value: Any) -> Any:
    if type(value) is str and value not in NEEDED:
        raise PydanticCustomError("unsupported", "items of this type are not supported by this server")
    return value


def _check_parts(value: Any) -> Any:
    """A text as it is, a list of parts checked; parts that are no text refused by their name."""
    if value is None or type(value) is str:
        return value
    if type(value) is not list:
        raise PydanticCustomError("content", "should be text or a list of parts")
    if len(value) > MAX_PARTS:
        raise PydanticCustomError("content", "should hold at most {limit} parts", {"limit": MAX_PARTS})
    return list(map(_part, value))


def _part(value: Any) -> Part:
    text = part_text(value, TEXT_OF_PART, MEDIA_PARTS | {"input_file"}, "input_text or output_text")
    return Part(value["type"], text)


def _parts_schema(*kinds: str) -> dict[str, Any]:
    part = {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    return {"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "array", "items": part}]}


def _parts(*kinds: str) -> Any:
    return Annotated[str | list[Part] | None, BeforeValidator(_check_parts), WithJsonSchema(_parts_schema(*kinds))]


class InputItem(StrictModel):
    """One item of a conversation: a message (the type may be left out), a call, its output, or reasoning."""

    type: Annotated[
        Literal["message", "function_call", "function_call_output", "reasoning", "item_reference"],
        BeforeValidator(_check_type),
    ]
    id: Text | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: _parts("input_text", "output_text", "reasoning_text") = None  # type: ignore[valid-type]
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: Text | None = None
    name: FunctionName | None = None
    arguments: str | None = None
    output: _parts("input_text") = None  # type: ignore[valid-type]
    summary: _parts("summary_text") = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def _add_type(cls, value: Any) -> Any:
        if type(value) is dict and value.get("type") is None:
            return {**value, "type": "message" if "role" in value else "item_reference"}
        return value

    @model_validator(mode="after")
    def _check_fields_of_type(self) -> "InputItem":
        for name in NEEDED[self.type]:
            if getattr(self, name) is None:
                raise PydanticCustomError(
                    "item", "an item of type {type} should have {name}", {"type": self.type, "name": name}
                )
        return self

    def kept(self) -> Item:
        """The item as it is kept and given back, with an id."""
        item: Item = {"id": self.id or new_item_id(self.type), "type": self.type}
        match self.type:
            case "message":
                return item | self._message()
            case "function_call":
                fields: Item = {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
            case "function_call_output":
                parts = self.output if isinstance(self.output, str) else _texts(self.output, "input_text")
                fields = {"call_id": self.call_id, "output": parts}
            case _:
                summary, content = _texts(self.summary, "summary_text"), _texts(self.content, "reasoning_text")
                fields = {"summary": summary, "content": content}
        return item | fields | {"status": "completed"}

    def _message(self) -> Item:
        kind = "output_text" if self.role == "assistant" else "input_text"
        item: Item = {"role": self.role, "status": "completed", "content": _texts(self.content, kind)}
        return item if self.phase is None else item | {"phase": self.phase}


def _texts(content: str | list[Part] | None, kind: str) -> list[dict[str, Any]]:
    """Parts of one type, as replies have them."""
    parts = [Part(kind, content)] if isinstance(content, str) else content or []
    extra: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return [{"type": kind, "text": part.text, **extra} for part in parts]


def _check_input(value: Any) -> Any:
    """A text is a user's message."""
    if type(value) is str:
        value = [{"type": "message", "role": "user", "content": value}] if value else []
    if value in (None, []):
        raise PydanticCustomError("empty_prompt", "should hold a text or at least one item")
    if type(value) is list and len(value) > MAX_INPUT_ITEMS:
        raise PydanticCustomError(
            "input", "should hold at most {limit} items, got {num}", {"limit": MAX_INPUT_ITEMS, "num": len(value)}
        )
    return value


def _or_text(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "string"}, {name: schema.pop(name) for name in ("type", "items")}]


Input = Annotated[
    list[InputItem], Field(fail_fast=True, json_schema_extra=_or_text), BeforeValidator(_check_input)
]
