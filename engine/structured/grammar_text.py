"""What a client wants its output to match, as the text of a grammar that llguidance compiles."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, StructTag

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.structured.schema_form import compilable
from vllm_obs.engine.structured.schema_intersections import check_inline_schemas, check_intersections

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARS = 262_144
"""Of a schema, regex or grammar as it is given, and of the grammar made of it."""
MAX_CHOICES = 4096
MAX_TAGS = 128
MAX_ECHO_CHARS = 48
MAX_BLANKS = 24
"""So many blanks and line ends may stand between two words of JSON; without a bound a model can go on for ever."""

BLANKS = rf"[ \t\n\r]{{1,{MAX_BLANKS}}}"
_FLEXIBLE: "JsonCompileOptions" = {"whitespace_flexible": True, "whitespace_pattern": BLANKS}
_COMPACT: "JsonCompileOptions" = {"whitespace_flexible": False}


def json_grammar(schema: Mapping[str, Any] | bool, is_compact: bool = False) -> str:
    """JSON that a JSON Schema accepts; RequestError where the schema cannot be written down or is too long."""
    text = schema_text(schema)
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=_COMPACT if is_compact else _FLEXIBLE)
    except ValueError as error:
        raise RequestError(f"The JSON schema cannot be used: {told(str(error), text)}.", "json") from None
    return _checked(grammar)


def schema_text(schema: Mapping[str, Any] | bool) -> str:
    """A schema written down for the compiler. RequestError where that cannot be done, or it is too long."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    try:
        text = json.dumps(compilable(schema), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(f"The JSON schema cannot be written: {told(str(error), '')}.", "json") from None
    _check_length("the JSON schema", text)
    check_intersections(schema)
    return text


def json_object_grammar(is_compact: bool = False) -> str:
    """Any JSON object."""
    return json_grammar({"type": "object"}, is_compact)


def regex_grammar(pattern: str) -> str:
    """Text that a regular expression matches from its beginning to its end."""
    _check_length("the regular expression", pattern)
    return _checked(LLMatcher.grammar_from_regex(pattern))


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these texts. RequestError for none, for too many, and for an empty one."""
    if not 0 < len(choices) <= MAX_CHOICES:
        raise RequestError(f"choice has {len(choices)} entries; 1 to {MAX_CHOICES} may be.", "choice")
    if not all(choices):
        raise RequestError("choice holds an empty text.", "choice")
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    _check_length("the choices", alternatives)
    return _checked(LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def lark_grammar(text: str) -> str:
    """A context-free grammar in the Lark dialect, or in GBNF (rules written with ::=)."""
    return _checked(LLMatcher.grammar_from_lark(lark_text(text)))


def lark_text(text: str) -> str:
    """The same in the Lark dialect."""
    _check_length("the grammar", text)
    check_inline_schemas(text)
    return _lark_of_gbnf(text) if "::=" in text else text


def grammar_with_parts(text: str, parts: Mapping[str, str]) -> str:
    """A grammar in the Lark dialect, and the others that it names as @part."""
    if not parts:
        return _checked(LLMatcher.grammar_from_lark(text))
    named = [{"name": name, "lark_grammar": part} for name, part in parts.items()]
    return _checked(json.dumps({"grammars": [{"name": "whole", "lark_grammar": text}, *named]}))


def tag_grammar(tags: Sequence[StructTag]) -> str:
    """Free text in which what begins like one of the tags goes on as the tag says."""
    if not 0 < len(tags) <= MAX_TAGS:
        raise RequestError(f"structural_tag has {len(tags)} tags; 1 to {MAX_TAGS} may be.", "structural_tag")
    for tag in tags:
        if isinstance(tag.grammar, Mapping):
            check_intersections(tag.grammar)
    text = StructTag.to_grammar(list(tags), assume_special=False)
    return _checked(text if text.lstrip().startswith("{") else LLMatcher.grammar_from_lark(text))


def _lark_of_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # the converter raises whatever its parser raises
        raise RequestError(f"The grammar cannot be read: {told(str(error), text)}.", "grammar") from None


def _check_length(what: str, text: str) -> None:
    if not 0 < len(text) <= MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"{what[0].upper()}{what[1:]} has {len(text)} characters; 1 to {MAX_GRAMMAR_CHARS} may be.",
            "structured_outputs",
        )


def _checked(grammar: str) -> str:
    _check_length("the grammar made of it", grammar)
    return grammar


def told(error: str, given: str) -> str:
    """The first line of what a compiler complains of, cut where it repeats much of what it was given."""
    line = (error.strip().splitlines() or [""])[0][:200].rstrip(".:")
    for start in range(len(line) - MAX_ECHO_CHARS):
        if line[start : start + MAX_ECHO_CHARS + 1] in given:
            return line[: start + MAX_ECHO_CHARS - 1] + "…"
    return line or "no reason given"
