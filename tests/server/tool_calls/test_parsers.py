"""Every form of calls is read the same however it comes in pieces, and what is no call stays text."""

import json
from collections.abc import Callable
from itertools import pairwise
from keyword import iskeyword
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_obs.server.tool_calls.events import Event, ParsedCall, ParsedReply, Tool, joined
from vllm_obs.server.tool_calls.registry import PARSERS, tool_parser

WEATHER = Tool(
    "get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}, "detailed": {"type": "boolean"}}
)
ARGUMENTS = '{"city": "Paris \\"x\\"", "days": [1, {"a": null}]}'
CALL = '{"name": "get_weather", "arguments": ' + ARGUMENTS + "}"
WANTED = ParsedCall("get_weather", ARGUMENTS)
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=detailed>\nTrue\n</parameter>\n</function>\n</tool_call>"
)
XML_CALL = ParsedCall("get_weather", '{"city": "New\\nYork", "days": 3, "detailed": true}')

OPTIONAL = Tool(
    "look_up",
    {
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "where": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "word": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "share": {"type": "number"},
        "flags": {"anyOf": [{"type": "boolean"}, {"type": "array"}]},
        "place": {"$ref": "#/$defs/Place"},
    },
)


def xml(**values: str) -> str:
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<tool_call>\n<function=look_up>\n{parameters}</function>\n</tool_call>"


CASES: list[tuple[str, str, ParsedReply]] = [
    ("hermes", "plain <b> text\n", ParsedReply("plain <b> text\n", [])),
    ("hermes", f"Look:\n<tool_call>\n{CALL}\n</tool_call>", ParsedReply("Look:", [WANTED])),
    (
        "hermes",
        f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\nDone. ",
        ParsedReply("\nDone.", [WANTED, WANTED]),
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', ParsedReply("", [ParsedCall("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        ParsedReply("", [ParsedCall("f", '{"a": 1}')]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}', ParsedReply("", [ParsedCall("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        ParsedReply("", [ParsedCall("f", '{"a": 1}')]),
    ),
    ("hermes", "<tool_call>no JSON</tool_call>", ParsedReply("<tool_call>no JSON</tool_call>", [])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', ParsedReply("", [ParsedCall("f", '{"a": ')])),
    ("hermes", "text <tool_c", ParsedReply("text <tool_c", [])),
    ("hermes", "Hm \n<tool_call> is none \n", ParsedReply("Hm \n<tool_call> is none \n", [])),
    ("hermes", 'a\n<tool_call>{"name"', ParsedReply('a\n<tool_call>{"name"', [])),
    (
        "hermes",
        f'<tool_call>{{"<tool_call>" <tool_call>{CALL}</tool_call>',
        ParsedReply('<tool_call>{"<tool_call>"', [WANTED]),
    ),
    ("llama3_json", CALL, ParsedReply("", [WANTED])),
    (
        "llama3_json",
        f"<|python_tag|>{CALL.replace('arguments', 'parameters')}; {CALL}",
        ParsedReply("", [WANTED, WANTED]),
    ),
    ("llama3_json", "Hello {}", ParsedReply("Hello {}", [])),
    ("llama3_json", '{"a": 1}', ParsedReply('{"a": 1}', [])),
    ("llama3_json", '{"name": "Bob", "age": 3}', ParsedReply('{"name": "Bob", "age": 3}', [])),
    ("llama3_json", '{"name": "Bob", "age', ParsedReply('{"name": "Bob", "age', [])),
    ("llama3_json", '{"parameters": {"a": 1}}', ParsedReply('{"parameters": {"a": 1}}', [])),
    ("llama3_json", '{"parameters": {"a": 1}, "na', ParsedReply('{"parameters": {"a": 1}, "na', [])),
    (
        "llama3_json",
        '{"parameters": {"a": 1}, "name": "f"}',
        ParsedReply("", [ParsedCall("f", '{"a": 1}')]),
    ),
    ("llama3_json", f'{CALL}; {{"name": "Bob"}}', ParsedReply('{"name": "Bob"}', [WANTED])),
    (
        "llama3_json",
        '{"name": "f", "parameters": null}',
        ParsedReply("", [ParsedCall("f", "{}")]),
    ),
    ("llama3_json", '{"name": "f", "parameters": {"a', ParsedReply("", [ParsedCall("f", '{"a')])),
    ("llama3_json", f"{CALL}\nDone. ", ParsedReply("\nDone. ", [WANTED])),
    ("llama3_json", f"{CALL};\n", ParsedReply("", [WANTED])),
    ("llama3_json", f"{CALL} <|python_tag|>{CALL}", ParsedReply("", [WANTED, WANTED])),
    ("llama3_json", f"{CALL} <|py", ParsedReply(" <|py", [WANTED])),
    ("llama3_json", f"{CALL} and {CALL}", ParsedReply(f" and {CALL}", [WANTED])),
    ("llama3_json", '<|python_tag|>{"x":1} y', ParsedReply('<|python_tag|>{"x":1} y', [])),
    ("llama3_json", ' <|python_tag|> {"name"', ParsedReply(' <|python_tag|> {"name"', [])),
    ("llama3_json", "<|python_tag|>print(1)", ParsedReply("<|python_tag|>print(1)", [])),
    ("llama3_json", f'{CALL}; <|python_tag|>{{"x":1}}', ParsedReply('<|python_tag|>{"x":1}', [WANTED])),
    ("llama3_json", f"{CALL} <|python_tag|>print(1)", ParsedReply(" <|python_tag|>print(1)", [WANTED])),
    ("llama3_json", f"{CALL}<|python_tag|>", ParsedReply("<|python_tag|>", [WANTED])),
    ("mistral", f"[TOOL_CALLS][{CALL}, {CALL}]", ParsedReply("", [WANTED, WANTED])),
    ("mistral", f"Hm. [TOOL_CALLS] get_weather{ARGUMENTS}", ParsedReply("Hm.", [WANTED])),
    (
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]g{{}}",
        ParsedReply("", [WANTED, ParsedCall("g", "{}")]),
    ),
    ("mistral", "[TOOL_", ParsedReply("[TOOL_", [])),
    ("mistral", '[TOOL_CALLS][{"a": 1}]', ParsedReply('[TOOL_CALLS][{"a": 1}]', [])),
    ("mistral", '[TOOL_CALLS] [{"arguments": {}}', ParsedReply('[TOOL_CALLS] [{"arguments": {}}', [])),
    ("mistral", '[TOOL_CALLS][{"name": "f"}]', ParsedReply("", [ParsedCall("f", "{}")])),
    (
        "mistral",
        '[TOOL_CALLS][{"arguments": {"a": 1}, "name": "f"}]',
        ParsedReply("", [ParsedCall("f", '{"a": 1}')]),
    ),
    ("mistral", f'[TOOL_CALLS][{CALL}, {{"a": 1}}] x', ParsedReply('{"a": 1}] x', [WANTED])),
    ("mistral", f'[TOOL_CALLS][{CALL}, {{"name": 5, "a": 1}}]', ParsedReply('{"name": 5, "a": 1}]', [WANTED])),
    ("mistral", "[TOOL_CALLS]", ParsedReply("[TOOL_CALLS]", [])),
    ("mistral", "[TOOL_CALLS][1, 2]", ParsedReply("[TOOL_CALLS][1, 2]", [])),
    ("mistral", "[TOOL_CALLS][]", ParsedReply("[TOOL_CALLS][]", [])),
    ("mistral", "A [TOOL_CALLS] {}", ParsedReply("A [TOOL_CALLS] {}", [])),
    (
        "pythonic",
        "[f(a=1, b='x, (y]'), g()]",
        ParsedReply("", [ParsedCall("f", '{"a": 1, "b": "x, (y]"}'), ParsedCall("g", "{}")]),
    ),
    (
        "pythonic",
        "[a.b(c={'d': [True, None]})]",
        ParsedReply("", [ParsedCall("a.b", '{"c": {"d": [true, null]}}')]),
    ),
    ("pythonic", "Hello [f()]", ParsedReply("Hello [f()]", [])),
    ("pythonic", "[f()]\nDone. \n", ParsedReply("\nDone.", [ParsedCall("f", "{}")])),
    ("pythonic", "[f(), g(a=", ParsedReply(" g(a=", [ParsedCall("f", "{}")])),
    ("pythonic", "[f(),\n", ParsedReply("", [ParsedCall("f", "{}")])),
    ("pythonic", "[]", ParsedReply("[]", [])),
    ("pythonic", "[] or so", ParsedReply("[] or so", [])),
    ("pythonic", "[1, 2]", ParsedReply("[1, 2]", [])),
    ("pythonic", "[f(__import__('os'))]", ParsedReply("[f(__import__('os'))]", [])),
    ("pythonic", "[f(a=", ParsedReply("[f(a=", [])),
    ("pythonic", "[f(a=1e999)]", ParsedReply("[f(a=1e999)]", [])),
    ("qwen3_coder", f"Look:\n{XML}\n{XML}", ParsedReply("Look:", [XML_CALL, XML_CALL])),
    ("qwen3_coder", "<function=g></function>", ParsedReply("", [ParsedCall("g", "{}")])),
    (
        "qwen3_coder",
        xml(limit="5", where='{"x": 1}', word="5", share="NaN"),
        ParsedReply("", [ParsedCall("look_up", '{"limit": 5, "where": {"x": 1}, "word": "5", "share": "NaN"}')]),
    ),
    (
        "qwen3_coder",
        xml(limit="null", where="null", word="null"),
        ParsedReply("", [ParsedCall("look_up", '{"limit": null, "where": null, "word": null}')]),
    ),
    (
        "qwen3_coder",
        xml(flags='["A", True]', share="1e999"),
        ParsedReply("", [ParsedCall("look_up", '{"flags": "[\\"A\\", True]", "share": "1e999"}')]),
    ),
    (
        "qwen3_coder",
        xml(flags='["Yes", true]', place='{"x": [1]}'),
        ParsedReply("", [ParsedCall("look_up", '{"flags": ["Yes", true], "place": {"x": [1]}}')]),
    ),
    (
        "qwen3_coder",
        xml(flags="TRUE", place="5"),
        ParsedReply("", [ParsedCall("look_up", '{"flags": true, "place": "5"}')]),
    ),
    ("qwen3_coder", "a < b", ParsedReply("a < b", [])),
    ("qwen3_coder", "a <tool_call>no call</tool_call> b", ParsedReply("a <tool_call>no call</tool_call> b", [])),
    ("qwen3_coder", "a\n<tool_call>\nno c", ParsedReply("a\n<tool_call>\nno c", [])),
    ("qwen3_coder", "<tool_call>\n<function=f", ParsedReply("<tool_call>\n<function=f", [])),
    ("qwen3_coder", "a <function=f", ParsedReply("a <function=f", [])),
    (
        "qwen3_coder",
        f"<tool_call><function=>x</function></tool_call>\n{XML}",
        ParsedReply("<tool_call><function=>x</function></tool_call>", [XML_CALL]),
    ),
    ("qwen3_coder", "a <function=></function> b", ParsedReply("a <function=></function> b", [])),
    ("qwen3_coder", "<function=g></function>\nDone.", ParsedReply("\nDone.", [ParsedCall("g", "{}")])),
    ("qwen3_coder", "<function=g></function>\n</tool_", ParsedReply("", [ParsedCall("g", "{}")])),
    (
        "qwen3_coder",
        "<tool_call><function=g></function></tool_call> x",
        ParsedReply(" x", [ParsedCall("g", "{}")]),
    ),
]


def read(name: str, pieces: list[str]) -> ParsedReply:
    parser = tool_parser(name)([WEATHER, OPTIONAL])
    events: list[Event] = [event for piece in pieces for event in parser.feed(piece)]
    return joined([*events, *parser.finish()])


@pytest.mark.parametrize(("name", "text", "reply"), CASES)
def test_a_reply_is_read_whole(name: str, text: str, reply: ParsedReply) -> None:
    assert read(name, [text]) == reply


@pytest.mark.parametrize(("name", "text", "reply"), CASES)
def test_a_reply_is_read_character_by_character(name: str, text: str, reply: ParsedReply) -> None:
    assert read(name, list(text)) == reply


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_where_a_reply_is_cut_does_not_matter(case: tuple[str, str, ParsedReply], cuts: list[int]) -> None:
    name, text, reply = case
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert read(name, [text[a:b] for a, b in pairwise(places)]) == reply


HALF = "\\ud800"


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("hermes", f'<tool_call>{{"name": "f{HALF}", "arguments": {{}}}}</tool_call>', ("f?", "{}")),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": "[\\"{HALF}\\"]"}}</tool_call>', ("f", f'["{HALF}"]')),
        ("pythonic", f"[f(a='é{HALF}')]", ("f", f'{{"a": "é{HALF}"}}')),
        ("qwen3_coder", xml(where=f'["é{HALF}"]'), ("look_up", f'{{"where": ["é{HALF}"]}}')),
    ],
)
def test_half_a_surrogate_pair_can_be_sent(name: str, text: str, call: tuple[str, str]) -> None:
    reply = read(name, list(text))
    assert reply.calls == [call]
    assert orjson.dumps(list(reply.calls[0]))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FORMS: dict[str, Callable[[dict[str, Any]], str]] = {
    "hermes": lambda call: f"<tool_call>{json.dumps(call)}</tool_call>",
    "llama3_json": json.dumps,
    "mistral": lambda call: f"[TOOL_CALLS][{json.dumps(call)}]",
    "pythonic": lambda call: f"[{call['name']}({', '.join(f'{k}={v!r}' for k, v in call['arguments'].items())})]",
}
ARGUMENT_NAMES = st.text("abcdefg", min_size=1, max_size=4).filter(lambda name: not iskeyword(name))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    form=st.sampled_from(list(FORMS)),
    arguments=st.dictionaries(ARGUMENT_NAMES, JSON, max_size=3),
    cuts=st.lists(st.integers(0, 300), max_size=5),
)
def test_arguments_of_any_kind_come_through(form: str, arguments: dict[str, Any], cuts: list[int]) -> None:
    text = FORMS[form]({"name": "f", "arguments": arguments})
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    reply = read(form, [text[a:b] for a, b in pairwise(places)])
    assert reply.content == ""
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [("f", arguments)]


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", *'{}":,a \n'])))
def test_what_is_no_call_stays_as_it_was(pieces: list[str]) -> None:
    assert read("hermes", pieces) == ParsedReply("".join(pieces), [])


def test_arguments_go_out_while_they_are_written() -> None:
    parser = tool_parser("hermes")([])
    parser.feed('<tool_call>{"name": "f", "arguments": ')
    assert [parser.feed(piece) for piece in ('{"a', '": "b', "c")] == [
        [(0, "", "{"), (0, "", '"'), (0, "", "a")],
        [(0, "", '"'), (0, "", ":"), (0, "", " "), (0, "", '"'), (0, "", "b")],
        [(0, "", "c")],
    ]


@pytest.mark.parametrize("name", [*PARSERS, "vllm_obs.server.tool_calls.hermes:HermesParser"])
def test_parsers_are_found_by_name(name: str) -> None:
    assert tool_parser(name)([]).feed("") == []


@pytest.mark.parametrize("name", ["nope", "nope:Nope", "vllm_obs.server.tool_calls.hermes:Nope"])
def test_a_parser_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="tool parser"):
        tool_parser(name)
