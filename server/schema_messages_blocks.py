"""The content blocks of /v1/messages, by which clients send a conversation."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import StrictModel, Text
from vllm_obs.server.schema_tools import FunctionName

MAX_BLOCKS = 16_384

UNSUPPORTED_BLOCKS = frozenset(
    {
        "image",
        "document",
        "search_result",
        "container_upload",
        "tool_reference",
        "server_tool_use",
        "mcp_tool_use",
        "mcp_tool_result",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
    }
)

NEEDED = {"text": ("text",), "tool_use": ("id", "name", "input"), "tool_result": ("tool_use_id",)}
"""The fields that a block of this type must have; a thinking block may be empty."""


def _check_kind(value: Any) -> Any:
    if type(value) is str and value in UNSUPPORTED_BLOCKS:
        raise PydanticCustomError("unsupported", "{kind} blocks are not supported by this model", {"kind": value})
    return value


def _as_blocks(value: Any) -> Any:
    """A text is the one block of it."""
    if type(value) is str:
        return [{"type": "text", "text": value}]
    if type(value) is not list:
        raise PydanticCustomError("content", "should be text or a list of blocks")
    return value


def _as_result_blocks(value: Any) -> Any:
    return [] if value is None else _as_blocks(value)


class TextBlock(StrictModel):
    """Text where nothing else may stand."""

    type: Annotated[Literal["text"], BeforeValidator(_check_kind)]
    text: str


_TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True, max_length=MAX_BLOCKS)]
Texts = Annotated[_TextBlocks, BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])]
ResultTexts = Annotated[
    _TextBlocks, BeforeValidator(_as_result_blocks, json_schema_input_type=str | list[TextBlock] | None)
]


class Block(StrictModel):
    """A block of a message. Which fields count is its type's business; marks for a cache are ignored."""

    type: Annotated[
        Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"], BeforeValidator(_check_kind)
    ]
    text: str | None = None
    id: Text | None = None
    name: FunctionName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Text | None = None
    content: ResultTexts = Field(default_factory=list)
    is_error: bool | None = None
    thinking: str | None = None

    @model_validator(mode="after")
    def _check_is_whole(self) -> "Block":
        missing = [name for name in NEEDED.get(self.type, ()) if getattr(self, name) is None]
        if missing:
            raise PydanticCustomError(
                "block", "a {kind} block should have {names}", {"kind": self.type, "names": ", ".join(missing)}
            )
        return self


Blocks = Annotated[
    list[Block],
    Field(fail_fast=True, max_length=MAX_BLOCKS),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block]),
]
