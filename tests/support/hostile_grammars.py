"""Hostile forms of an output: schemas and grammars that are none, too large, too deep, or never end."""

from collections.abc import Iterator
from typing import Any

from hostile_exchange import Case
from hostile_routes import CHAT, MESSAGES, RESPONSES, TEXT, raw, refused, served

REASONS = ("unsupported", "invalid_value", "too_deep")
REFUSED_REGEXES = ("[", "(", "*", "(?=a)b", "(a)\\1", "(" * 100_000, "(a*)*" * 1000, "", "a" * 1_000_000)
SERVED_REGEXES = ("(a+)+b", "(a|a)*b", "(.*a){20}", "(x+x+)+y", "a{1,1000000000}", "((a{1,999}){1,999}){1,999}")


def chained(num_links: int, end: dict[str, Any]) -> dict[str, Any]:
    """A schema of definitions of which each names the next, and the last is `end`."""
    links = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(num_links)}
    return {"$defs": {**links, f"d{num_links}": end}, "$ref": "#/$defs/d0"}


def ored(depth: int) -> dict[str, Any]:
    """A format of a structural tag in which so many stand in one another."""
    return {"type": "or", "elements": [ored(depth - 1)]} if depth else {"type": "any_text"}


REFUSED_SCHEMAS: tuple[Any, ...] = (
    {"$ref": "#"},
    {"$ref": "#/$defs/none"},
    {"$ref": "file:///etc/passwd"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    chained(3000, {"type": "nonsense"}),
    {"uniqueItems": True},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(?=a)b"},
    {"enum": ["x" * 300_000]},
    {"properties": {f"p{n}": {"type": "string"} for n in range(30_000)}},
    {"a": [[1]] * 100_000},
    {"not": {}},
    False,
)
SERVED_SCHEMAS: tuple[Any, ...] = (chained(3000, {"type": "string"}),)
"""So long a chain once ended the process: the compiler follows it by recursion."""
REFUSED_GRAMMARS = (
    *(
        "",
        " ",
        "x",
        "start: a",
        "start: start",
        "start: " + "(" * 100_000,
        'root ::= "a',
        "::=" * 50_000,
    ),
    *('start: "a"' * 100_000, "start: <[4294967295]>", "%import nope.X\nstart: X", 'start: %json {"$ref":"#"}'),
)
CHAINED_GRAMMAR = "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(5000)) + 'r5000: "a"\n'


def grammar_cases() -> Iterator[Case]:
    """H31."""
    for regex in REFUSED_REGEXES:
        yield refused("H31", TEXT, {"structured_outputs": {"regex": regex}}, *REASONS)
    for regex in SERVED_REGEXES:
        yield served("H31", TEXT, {"structured_outputs": {"regex": regex}})
    for schema in REFUSED_SCHEMAS:
        yield from _schema(schema)
    for schema in SERVED_SCHEMAS:
        yield served("H31", TEXT, {"structured_outputs": {"json": schema}})
    for grammar in REFUSED_GRAMMARS:
        yield refused("H31", TEXT, {"structured_outputs": {"grammar": grammar}}, *REASONS)
    yield served("H31", TEXT, {"structured_outputs": {"grammar": CHAINED_GRAMMAR}})
    yield from _deep_texts()
    yield from _odd_forms()


def _schema(schema: Any) -> Iterator[Case]:
    """One schema in the forms of all APIs."""
    yield refused("H31", TEXT, {"structured_outputs": {"json": schema}}, *REASONS, any_param=True)
    yield refused("H31", TEXT, {"guided_json": schema}, *REASONS)
    kinds = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    yield refused("H31", CHAT, {"response_format": kinds}, *REASONS, any_param=True)
    form = {"type": "json_schema", "name": "x", "schema": schema}
    yield refused("H31", RESPONSES, {"text": {"format": form}}, *REASONS, any_param=True)
    yield refused("H31", MESSAGES, {"output_config": {"format": form}}, *REASONS, any_param=True)
    if isinstance(schema, dict):
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        fields = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}}
        yield refused("H31", CHAT, fields, *REASONS)


def _deep_texts() -> Iterator[Case]:
    for depth in (10_000, 500, 200):
        text = '{"items":' * depth + "{}" + "}" * depth
        yield refused("H31", TEXT, {"structured_outputs": {"json": text}}, *REASONS)
        yield raw("H31", TEXT, b'{"prompt":"Hi","guided_json":%b}' % text.encode(), "too_deep")


def _odd_forms() -> Iterator[Case]:
    for choice in ([], [""], ["x"] * 5000, ["x" * 300_000], [5] * 100_000, "abc", {}):
        yield refused("H31", TEXT, {"structured_outputs": {"choice": choice}}, any_param=True)
        yield refused("H31", TEXT, {"guided_choice": choice}, any_param=True)
    for wanted in ({}, {"regex": "a", "choice": ["b"]}, {"json": 5}, {"json": "{"}, {"regex": 5}, 5):
        yield refused("H31", TEXT, {"structured_outputs": wanted}, any_param=True)
    for kind in ("regex", "grammar", "", 5, None):
        yield refused("H31", CHAT, {"response_format": {"type": kind, "regex": "(a+)+b"}}, any_param=True)
    letter = {"type": "const_string", "value": "a"}
    for given in (5, {}, {"type": "or", "elements": [letter] * 5000}, ored(40), {"type": "regex", "pattern": "("}):
        tag = {"type": "structural_tag", "format": given}
        yield refused("H31", CHAT, {"response_format": tag}, *REASONS, any_param=True)
        yield refused("H31", TEXT, {"structured_outputs": {"structural_tag": tag}}, *REASONS, any_param=True)
    tag = {"begin": "<", "schema": {"$ref": "#"}, "end": ">"}
    for structures, triggers in (([tag] * 20_000, ["x"] * 20_000 + ["<"]), ([5], ["<"]), ([], [])):
        fields = {"type": "structural_tag", "structures": structures, "triggers": triggers}
        yield refused("H31", CHAT, {"response_format": fields}, *REASONS, any_param=True)
