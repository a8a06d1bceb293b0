"""The fields of /v1/responses by which clients offer tools, choose among them, and ask for a form of the text."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import Options, StrictModel, check_size
from vllm_obs.server.schema_template import Verbosity
from vllm_obs.server.schema_tools import MAX_TOOLS, FunctionName, FunctionType
from vllm_obs.server.validation import invalid


class FunctionTool(StrictModel):
    """A function that the model may call; its parameters are a JSON Schema of an object."""

    type: FunctionType
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        """The tool as chats have it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class FunctionReference(StrictModel):
    """A function by its name."""

    type: FunctionType
    name: FunctionName


def _check_choice(value: Any) -> Any:
    """A word as it is; of an object its type is looked at first."""
    kind = value.get("type") if type(value) is dict else value
    if type(value) not in (str, dict) or kind is None:
        raise PydanticCustomError("tool_choice", "should be auto, none, required, or name a function")
    if type(value) is dict and type(kind) is str and kind not in ("function", "allowed_tools"):
        raise PydanticCustomError("unsupported", "tools other than functions are not supported by this server")
    return value if type(value) is dict else {"type": kind}


class Choice(Options):
    """Who decides on calls: a word, the one function to be called, or the functions that may be called."""

    type: Literal["auto", "none", "required", "function", "allowed_tools"]
    name: FunctionName | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[FunctionReference], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _check_fields_of_type(self) -> "Choice":
        if self.type == "function" and self.name is None:
            raise PydanticCustomError("tool_choice", "should have the name of a function")
        if self.type == "allowed_tools" and not self.tools:
            raise PydanticCustomError("tool_choice", "should hold the tools that are allowed")
        return self

    def fields(self) -> Any:
        """The choice as replies have it."""
        if self.type == "function":
            return {"type": self.type, "name": self.name}
        if self.type == "allowed_tools":
            return {"type": self.type, "mode": self.mode, "tools": [tool.model_dump() for tool in self.tools]}
        return self.type

    def for_chat(self) -> Any:
        """The choice as chats have it."""
        if self.type == "function":
            return {"type": self.type, "function": {"name": self.name}}
        return self.mode if self.type == "allowed_tools" else self.type


def _or_word(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"enum": ["auto", "none", "required"]}, {"$ref": schema.pop("$ref")}]


ToolChoice = Annotated[Choice, BeforeValidator(_check_choice), Field(json_schema_extra=_or_word)]
FunctionTools = Annotated[
    list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(check_size)
]


class TextFormat(StrictModel):
    """What the text is like. json_object is any JSON object; a json_schema is always kept to strictly."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, BeforeValidator(check_size)] = Field(
        default=None, alias="schema"
    )
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_fields_together(self) -> "TextFormat":
        if self.type == "json_schema" and self.schema_ is None:
            raise invalid("text.format", "should hold a schema")
        return self

    def fields(self) -> dict[str, Any]:
        """The format as replies have it."""
        if self.type != "json_schema":
            return {"type": self.type}
        told = {"name": self.name or "response", "description": self.description, "schema": self.schema_}
        return {"type": self.type, **told, "strict": True}

    def for_chat(self) -> dict[str, Any]:
        """The format as chats have it."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_, "strict": True}}


class TextOptions(Options):
    """How the text is to be; how verbose, its template may know."""

    format: TextFormat = TextFormat()
    verbosity: Verbosity | None = None

    def fields(self) -> dict[str, Any]:
        """The options as replies have them."""
        told = {} if self.verbosity is None else {"verbosity": self.verbosity}
        return {"format": self.format.fields(), **told}
