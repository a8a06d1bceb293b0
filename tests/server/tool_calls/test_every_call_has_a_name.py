"""Whatever a model writes in a parser's own syntax: a call begins with its name, and pieces change nothing."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.server.message_reader import MessageReader, whole_calls
from vllm_obs.server.tool_calls.events import CallDelta, Event, ParsedReply, Tool, joined
from vllm_obs.server.tool_calls.registry import PARSERS, tool_parser

OBJECTS = [
    '{"name": "f", "arguments": {"a": 1}}',
    '{"name": "", "arguments": {}}',
    '{"name": "f"}',
    '{"arguments": {}}',
    '"name"',
    '"arguments"',
    '"parameters"',
    '""',
    '"f"',
    "null",
    *'{}[]:,;1"\\ \n',
]
PIECES: dict[str, Sequence[str]] = {
    "hermes": ["<tool_call>", "</tool_call>", *OBJECTS],
    "llama3_json": ["<|python_tag|>", "; ", *OBJECTS],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "f{", "[TOOL_CALLS]f{}", *OBJECTS],
    "pythonic": [
        "[f()",
        ", g(a=1)",
        "[",
        "]",
        "()",
        "f",
        "(",
        ")",
        ",",
        "a=",
        "1",
        "'",
        "\\",
        '""',
        ".",
        "*",
        " ",
        "\n",
    ],
    "qwen3_coder": [
        *("<tool_call>", "</tool_call>", "<function=f>", "<function=>", "<function='\"", "</function>"),
        *(
            "<function=f>\n</function>",
            "<parameter=a>",
            "<parameter=>",
            "</parameter>",
            "<",
            ">",
            "f",
            "1",
            " ",
            "\n",
        ),
    ],
}
UNNAMED = [
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n<function=>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<function=f></function><function=''>"),
    ("qwen3_coder", "<tool_call><function=f></function><function=></function><tool_call><function=g></function>"),
]


def events_of(name: str, pieces: Sequence[str]) -> list[Event]:
    parser = tool_parser(name)([Tool("f", {"a": {"type": "integer"}})])
    fed = [event for piece in pieces for event in parser.feed(piece)]
    return [*fed, *parser.finish()]


def read(name: str, pieces: Sequence[str]) -> ParsedReply:
    """The reply, all of whose calls begin with a name that no later delta changes."""
    events = events_of(name, pieces)
    begun: list[int] = []
    for event in events:
        if isinstance(event, CallDelta):
            assert bool(event.name) == (event.call not in begun), events
            begun += [event.call] if event.name else []
    assert begun == list(range(len(begun)))
    return joined(events)


def whole(name: str, text: str) -> list[tuple[str, str]]:
    calls = whole_calls(MessageReader(None, tool_parser(name)([])).feed(text, is_last=True).calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_of_pieces_of_its_syntax(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[name]), max_size=14)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    reply = read(name, [text])
    assert read(name, list(text)) == reply
    assert read(name, [text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)])]) == reply
    assert [call_name for call_name, _ in whole(name, text)] == [call.name for call in reply.calls]


@pytest.mark.parametrize(("name", "text"), UNNAMED)
def test_a_function_without_a_name_behind_a_call_is_content(name: str, text: str) -> None:
    reply = read(name, list(text))
    assert reply == read(name, [text])
    assert [call.name for call in reply.calls] == ["f", "g"][: len(reply.calls)]
    assert "<function=" in reply.content


def test_every_parser_is_tried() -> None:
    assert set(PIECES) == set(PARSERS)
