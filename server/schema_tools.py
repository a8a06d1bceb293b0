"""The fields of a chat by which clients offer tools, choose among them, and send calls back."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import StrictModel, Text, check_size

MAX_TOOLS = 128
MAX_CALLS = 128
FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


def _check_type(value: Any) -> Any:
    if type(value) is str and value != "function":
        raise PydanticCustomError("unsupported", "tools other than functions are not supported by this server")
    return value


FunctionType = Annotated[Literal["function"], BeforeValidator(_check_type)]


class FunctionDefinition(StrictModel):
    """A function that the model may call; its parameters are a JSON Schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(StrictModel):
    """A tool is a function."""

    type: FunctionType = "function"
    function: FunctionDefinition


class FunctionChoice(StrictModel):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(StrictModel):
    """The one function that is to be called."""

    type: FunctionType = "function"
    function: FunctionChoice


class AllowedTools(StrictModel):
    """The functions that may be called, and whether one has to be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedToolChoice(StrictModel):
    """Of the tools only these count."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class FunctionCall(StrictModel):
    """A call as it was made: arguments are JSON in a text."""

    name: FunctionName
    arguments: str | None = None


class ToolCall(StrictModel):
    """A call of an assistant's message."""

    id: Text | None = None
    type: FunctionType = "function"
    function: FunctionCall


WORDS = ("none", "auto", "required")


def _check_choice(value: Any) -> Any:
    if type(value) is dict:
        return _CHOICES.get(_word(value.get("type")), NamedToolChoice).model_validate(value)
    if value is not None and not isinstance(value, NamedToolChoice | AllowedToolChoice) and value not in WORDS:
        raise PydanticCustomError("tool_choice", "should be none, auto, required, a function or allowed_tools")
    return value


def _word(value: Any) -> str:
    return value if type(value) is str else ""


_CHOICES: dict[str, type[StrictModel]] = {"allowed_tools": AllowedToolChoice}
_NAMED = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["function"],
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _NAMED, "minItems": 1, "maxItems": MAX_TOOLS},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}

ToolChoice = Annotated[
    NamedToolChoice | AllowedToolChoice | Literal["none", "auto", "required"] | None,
    BeforeValidator(_check_choice),
    WithJsonSchema({"anyOf": [{"enum": list(WORDS)}, _NAMED, _ALLOWED]}),
]
Tools = Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(check_size)]
"""All schemas of a request together have the size of one free object."""
ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]
