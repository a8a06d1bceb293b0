"""The fields by which clients say what a reply's text must match."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, model_validator

from vllm_obs.server.schema_base import Options, StrictModel, Strings, Text, check_size
from vllm_obs.server.validation import invalid

if TYPE_CHECKING:
    from vllm_obs.engine.structured.params import StructuredOutputsParams

LEGACY = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's older names, each a field of the body, and what they are called in structured_outputs."""

Schema = Annotated[
    Any, BeforeValidator(check_size), Field(json_schema_extra={"anyOf": [{"type": "object"}, {"type": "string"}]})
]


class StructuredOutputs(Options):
    """One of the kinds; the output matches it from its first character to its last."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_: Schema = Field(default=None, alias="json", description="a JSON Schema, or its text")
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = Field(default=None, description="a context-free grammar, Lark or GBNF")
    json_object: bool | None = None
    structural_tag: Annotated[dict[str, Any] | str | None, BeforeValidator(check_size)] = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    @model_validator(mode="after")
    def _check_is_supported(self) -> "StructuredOutputs":
        for name in ("disable_additional_properties", "whitespace_pattern"):
            if getattr(self, name):
                raise invalid(f"structured_outputs.{name}", "is not supported by this server", "unsupported")
        return self

    def kinds(self) -> dict[str, Any]:
        """What was given, by the engine's names."""
        kinds = {name: getattr(self, name) for name in ("regex", "choice", "grammar", "json_object")}
        return {**kinds, "json": self.schema_, "structural_tag": self.structural_tag}


class JsonSchemaFormat(StrictModel):
    """A named JSON Schema."""

    name: Text | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, BeforeValidator(check_size)] = Field(
        default=None, validation_alias=AliasChoices("schema", "json_schema"), serialization_alias="schema"
    )
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """OpenAI's way to say it. json_object is any JSON object; a json_schema is always kept to strictly."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: Annotated[list[dict[str, Any]], Field(fail_fast=True), BeforeValidator(check_size)] | None = None
    triggers: Strings | None = None
    format: Annotated[dict[str, Any] | None, BeforeValidator(check_size)] = Field(
        default=None, description="of a structural_tag: a format, which may hold others"
    )

    @model_validator(mode="after")
    def _check_fields_together(self) -> "ResponseFormat":
        if self.type == "json_schema" and (self.json_schema is None or self.json_schema.schema_ is None):
            raise invalid("response_format.json_schema", "should hold a schema")
        is_whole = self.format is not None or (self.structures is not None and self.triggers is not None)
        if self.type == "structural_tag" and not is_whole:
            raise invalid("response_format", "structural_tag needs a format, or structures and triggers")
        return self

    def kinds(self) -> dict[str, Any]:
        """What was asked for, by the engine's names; empty for plain text."""
        if self.type == "json_object":
            return {"json_object": True}
        if self.type == "json_schema" and self.json_schema is not None:
            return {"json": self.json_schema.schema_}
        if self.type == "structural_tag" and self.format is not None:
            return {"structural_tag": {"format": self.format}}
        if self.type == "structural_tag":
            return {"structural_tag": {"structures": self.structures, "triggers": self.triggers}}
        return {}


class StructuredRequest(StrictModel):
    """The fields of a body of which at most one may ask for a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: Strings | None = None
    guided_grammar: str | None = None

    def asked_form(self) -> str:
        """The field that says what the output is like; empty where it is plain text."""
        params = self.structured_params()
        return params.param if params is not None else ""

    def structured_params(self) -> "StructuredOutputsParams | None":
        """What the output must match; ApiError 400 where two fields say it."""
        asked: dict[str, dict[str, Any]] = {}
        if self.structured_outputs is not None:
            asked["structured_outputs"] = self.structured_outputs.kinds()
        if self.response_format is not None and (kinds := self.response_format.kinds()):
            asked["response_format"] = kinds
        for name, kind in LEGACY.items():
            if getattr(self, name) is not None:
                asked[name] = {kind: getattr(self, name)}
        if len(asked) > 1:
            first, second, *_ = asked
            raise invalid(second, f"excludes {first}: only one of them can say what the output is like")
        for name, kinds in asked.items():
            # Imported here: only who has a grammar needs a compiler.
            from vllm_obs.engine.structured.params import StructuredOutputsParams

            is_compact = self.structured_outputs is not None and self.structured_outputs.disable_any_whitespace
            return StructuredOutputsParams(**kinds, disable_any_whitespace=is_compact, param=name)
        return None
