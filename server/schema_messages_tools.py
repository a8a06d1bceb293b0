"""The fields of /v1/messages by which clients offer tools, choose among them, and ask for thoughts or a form."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import Count, FreeObject, StrictModel, Text, check_size
from vllm_obs.server.schema_tools import MAX_TOOLS, FunctionName

OBJECTS = ("properties", "$defs", "definitions")
"""Keywords of a JSON Schema that hold an object where they are there."""


def _check_tool_kind(value: Any) -> Any:
    if type(value) is str and value != "custom":
        raise PydanticCustomError("unsupported", "only tools that the client runs are supported: custom")
    return value


def _check_input_schema(value: Any) -> Any:
    for name in OBJECTS if type(value) is dict else ():
        if type(value.get(name)) not in (dict, type(None)):
            raise PydanticCustomError("input_schema", "{name} should be an object", {"name": name})
    return value


class MessageTool(StrictModel):
    """A tool that the client runs; `input_schema` is the JSON Schema of its input, an object."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_check_tool_kind)] = None
    name: FunctionName
    description: str | None = None
    input_schema: Annotated[dict[str, Any], BeforeValidator(_check_input_schema)]
    strict: bool | None = None


MessageTools = Annotated[
    list[MessageTool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(check_size)
]


class MessageToolChoice(StrictModel):
    """Whether tools may, must or may not be used, or which one must."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> "MessageToolChoice":
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("tool_choice", "of type tool should have the name of one")
        return self


class Thinking(StrictModel):
    """Whether the model's thoughts are wanted. A budget is no limit here: thoughts count as output."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the model is to think."""
        return self.type != "disabled"

    @property
    def is_shown(self) -> bool:
        """Whether the reply holds what it thought."""
        return self.is_on and self.display != "omitted"


class JsonOutputFormat(StrictModel):
    """The reply's text is JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: FreeObject = Field(alias="schema")


class OutputConfig(StrictModel):
    """What the reply is like. Effort is a hint, which a template may know."""

    effort: Text | None = None
    format: JsonOutputFormat | None = None


class Metadata(StrictModel):
    """Who asks, for the client's own books."""

    user_id: Text | None = None
