"""StructuredOutputsParams: what a client wants its output to match, and the grammar that says it."""

import json as json_library
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from llguidance import StructTag

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.structured import grammar_text
from vllm_obs.engine.structured.tag_format import format_grammar

MAX_TEXT_DEPTH = 64
"""Lists and objects within one another in the text of a schema or a tag, as many as in a request's body."""
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """vLLM's structured outputs, under its names: just one of the kinds, and how JSON is spaced.

    `json` is a schema or its text; `choice` texts of which one is the output; `grammar` Lark or GBNF;
    `structural_tag` a nested format, or the triggers and structures of tags inside free text, or the text of that.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    param: str = "structured_outputs"
    """The field of the request that said so, for errors."""

    @property
    def kind(self) -> str:
        """Which kind is asked for. RequestError for none and for several."""
        asked = [name for name in _KINDS if getattr(self, name) not in (None, False) or _is_schema(self, name)]
        if len(asked) != 1:
            what = f"has {' and '.join(asked)}" if asked else "is empty"
            raise RequestError(
                f"structured_outputs {what}; it takes one of {', '.join(_KINDS)}.", "structured_outputs"
            )
        return asked[0]

    def grammar_text(self) -> str:
        """The grammar. RequestError for what is none or too large; whether it compiles is not looked at."""
        match self.kind:
            case "json":
                return grammar_text.json_grammar(_schema_of(self.json), self.disable_any_whitespace)
            case "json_object":
                return grammar_text.json_object_grammar(self.disable_any_whitespace)
            case "regex":
                return grammar_text.regex_grammar(_text_of(self.regex, "regex"))
            case "choice":
                return grammar_text.choice_grammar(_choices_of(self.choice))
            case "grammar":
                return grammar_text.lark_grammar(_text_of(self.grammar, "grammar"))
        return _tag_grammar(self.structural_tag)


NAMES = frozenset(field.name for field in fields(StructuredOutputsParams))


def _is_schema(params: StructuredOutputsParams, name: str) -> bool:
    """The schema `false` is one, though nothing matches it."""
    return name == "json" and params.json is False


def _schema_of(schema: Any) -> Mapping[str, Any] | bool:
    if isinstance(schema, str):
        schema = _parsed(schema, "json")
    if not isinstance(schema, Mapping | bool):
        raise RequestError("A JSON schema must be an object.", "json")
    return schema


def _text_of(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{param} must be a string.", param)
    return value


def _choices_of(choices: Any) -> list[str]:
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise RequestError("choice must be a list of strings.", "choice")
    return [_text_of(choice, "choice") for choice in choices]


def _tag_grammar(value: Any) -> str:
    """In the nested form there is a format, in the older one there are structures and triggers."""
    tag = _parsed(value, "structural_tag") if isinstance(value, str) else value
    if isinstance(tag, Mapping) and tag.get("format") is not None:
        return format_grammar(tag["format"])
    return grammar_text.tag_grammar(_tags_of(tag))


def _tags_of(tag: Any) -> list[StructTag]:
    """Of {"structures": [{"begin", "schema", "end"}], "triggers": […]}; each has the first trigger that fits."""
    if not isinstance(tag, Mapping) or not isinstance(tag.get("structures"), list):
        what = "structural_tag needs a format, or structures and triggers."
        raise RequestError(what, "structural_tag", reason="unsupported")
    triggers = tag.get("triggers")
    if not isinstance(triggers, list) or not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise RequestError("structural_tag needs triggers: texts with which its tags begin.", "structural_tag")
    if max(len(tag["structures"]), len(triggers)) > (most := grammar_text.MAX_TAGS):
        raise RequestError(f"structural_tag takes at most {most} structures and triggers.", "structural_tag")
    return [_tag_of(structure, triggers) for structure in tag["structures"]]


def _tag_of(structure: Any, triggers: list[str]) -> StructTag:
    if not isinstance(structure, Mapping):
        raise RequestError("A structure must be an object.", "structural_tag")
    begin, end = structure.get("begin"), structure.get("end")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise RequestError("A structure needs begin and end, both texts.", "structural_tag")
    trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
    if trigger is None:
        raise RequestError("The begin of a structure begins with none of the triggers.", "structural_tag")
    schema = _schema_of(structure.get("schema", {}))
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return StructTag(trigger=trigger, begin=begin, grammar=dict(schema), end=end)


def _parsed(text: str, param: str) -> Any:
    if len(text) > grammar_text.MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"{param} has {len(text)} characters; at most {grammar_text.MAX_GRAMMAR_CHARS} may be.", param
        )
    try:
        value = json_library.loads(text)
    except RecursionError:
        raise _too_deep(param) from None
    except ValueError:
        raise RequestError(f"{param} is not JSON.", param) from None
    if _is_too_deep(value):
        raise _too_deep(param)
    return value


def _is_too_deep(value: Any) -> bool:
    level = _containers([value])
    for _ in range(MAX_TEXT_DEPTH):
        level = [inner for part in level for inner in _containers(part.values() if type(part) is dict else part)]
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _too_deep(param: str) -> RequestError:
    return RequestError(f"{param} is nested deeper than {MAX_TEXT_DEPTH} levels.", param, reason="too_deep")
