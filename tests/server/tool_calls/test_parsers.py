"""Every form of calls is read the same however it comes in pieces, and what is no call stays text."""

import json
from collections.abc import Callable
from itertools import pairwise
from keyword import iskeyword
from typing import Any

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
    ("mistral", f"[TOOL_CALLS][{CALL}, {CALL}]", ParsedReply("", [WANTED, WANTED])),
    ("mistral", f"Hm. [TOOL_CALLS] get_weather{ARGUMENTS}", ParsedReply("Hm.", [WANTED])),
    (
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]g{{}}",
        ParsedReply("", [WANTED, ParsedCall("g", "{}")]),
    ),
    ("mistral", "[TOOL_", ParsedReply("[TOOL_", [])),
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
    ("pythonic", "[1, 2]", ParsedReply("[1, 2]", [])),
    ("pythonic", "[f(__import__('os'))]", ParsedReply("[f(__import__('os'))]", [])),
    ("pythonic", "[f(a=", ParsedReply("[f(a=", [])),
    ("qwen3_coder", f"Look:\n{XML}\n{XML}", ParsedReply("Look:", [XML_CALL, XML_CALL])),
    ("qwen3_coder", "<function=g></function>", ParsedReply("", [ParsedCall("g", "{}")])),
    ("qwen3_coder", "a < b", ParsedReply("a < b", [])),
]


def read(name: str, pieces: list[str]) -> ParsedReply:
    parser = tool_parser(name)([WEATHER])
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
