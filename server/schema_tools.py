"""The fields of a chat by which clients offer tools, choose among them, and send calls back."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import StrictModel, Text, check_size

MAX_TOOLS = 128
MAX_CALLS = 128
FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class FunctionDefinition(StrictModel):
    """A function that the model may call; its parameters are a JSON Schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(StrictModel):
    """A tool is a function."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionChoice(StrictModel):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(StrictModel):
    """The one function that is to be called."""

    type: Literal["function"] = "function"
    function: FunctionChoice


class FunctionCall(StrictModel):
    """A call as it was made: arguments are JSON in a text."""

    name: FunctionName
    arguments: str | None = None


class ToolCall(StrictModel):
    """A call of an assistant's message."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


def _check_choice(value: Any) -> Any:
    if type(value) is str and value not in ("none", "auto", "required"):
        raise PydanticCustomError("tool_choice", "should be none, auto, required or the name of a function")
    return NamedToolChoice.model_validate(value) if isinstance(value, dict) else value


ToolChoice = Annotated[
    NamedToolChoice | Literal["none", "auto", "required"] | None,
    BeforeValidator(_check_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                        },
                    },
                    "required": ["function"],
                },
            ]
        }
    ),
]
Tools = Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(check_size)]
"""All schemas of a request together have the size of one free object."""
ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]
