"""Formats of structural tags, nested in one another, allow just what they say."""

from typing import Any

import pytest
from default_model import default_tokenizer
from llguidance import LLTokenizer

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.structured.compiler import build_matcher
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.engine.structured.tag_format import MAX_DEPTH, MAX_FORMATS

NUMBER = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": NUMBER}
ANY_TEXT = {"type": "any_text"}
THOUGHT = {"type": "tag", "begin": "<think>", "content": ANY_TEXT, "end": "</think>"}
CALL, OTHER = '<f=a>{"n":1}</f>', '<f=b>{"n": 2}</f>'


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def tag(begin: str, content: Any = JSON, end: Any = "</f>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(**fields: Any) -> dict[str, Any]:
    untyped = {name: value for name, value in tag("<f=b>").items() if name != "type"}
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag("<f=a>"), untyped], **fields}


def separated(**fields: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": [tag("<f=a>")], "separator": ", ", **fields}


def grammar(given: Any) -> str:
    return StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": given}).grammar_text()


CASES: list[tuple[Any, list[str], list[str]]] = [
    (const('a "b"\n/é\\'), ['a "b"\n/é\\'], ["a"]),
    (JSON, ['{"n":1}', '{"n": 2}'], ['{"n":3}', '{"n":' + " " * 30 + "1}"]),
    ({"type": "json_schema", "json_schema": True}, ["[1]"], ["[1"]),
    ({"type": "regex", "pattern": "[0-9]{2}/[a-z]+"}, ["12/ab"], ["1/ab"]),
    ({"type": "grammar", "grammar": 'root ::= "x" y\ny ::= [0-9]+'}, ["x12"], ["x"]),
    ({"type": "grammar", "grammar": 'start: "x" | "y"'}, ["x", "y"], ["xy"]),
    (ANY_TEXT, ["all\nof it", ""], []),
    (
        {"type": "sequence", "elements": [const("A"), {"type": "or", "elements": [const("B"), const("C")]}]},
        ["AB", "AC"],
        ["A", "ABC"],
    ),
    (tag("<f=a>"), [CALL], [CALL[:-1], "x" + CALL]),
    (THOUGHT, ["<think>hm\n<b></think>", "<think></think>"], ["<think>a</think>b", "<think>"]),
    (tag("<t>", ANY_TEXT, ["</t>", "END"]), ["<t>a</t>", "<t>aEND"], ["<t>aEND</t>"]),
    (tag("<t>", ANY_TEXT, ""), ["<t>abc"], ["x"]),
    (triggered(), [f"text {CALL} more {OTHER}", "none", CALL, ""], ["<f=c>", "<f=a>{}</f>", CALL[:-1]]),
    (triggered(at_least_one=True), [f"{CALL} more {OTHER}", CALL], [f"text {CALL}", ""]),
    (triggered(stop_after_first=True), [f"text {CALL}", "none"], [f"{CALL} more"]),
    (triggered(stop_after_first=True, at_least_one=True), [CALL, OTHER], [f"{CALL} more", f"text {CALL}"]),
    (separated(), ["", CALL, f"{CALL}, {CALL}"], [f"{CALL},", "x"]),
    (separated(at_least_one=True), [f"{CALL}, {CALL}, {CALL}"], [""]),
    (separated(at_least_one=True, stop_after_first=True), [CALL], [f"{CALL}, {CALL}"]),
    (
        {"type": "sequence", "elements": [THOUGHT, triggered()]},
        [f"<think>hm</think> so {CALL}", "<think></think>"],
        ["so"],
    ),
    (
        {"type": "triggered_tags", "triggers": ["<c>"], "tags": [tag("<c>", separated(), "</c>")]},
        [f"So <c>{CALL}, {CALL}</c>.", "So <c></c>"],
        [f"<c>{CALL} {CALL}</c>"],
    ),
]


@pytest.mark.parametrize(("given", "good", "bad"), CASES)
def test_a_format_allows_what_it_says_and_nothing_else(
    tokens: LLTokenizer, given: Any, good: list[str], bad: list[str]
) -> None:
    compiled = build_matcher(tokens, grammar(given))
    for text in (*good, *bad):
        matcher, ids = compiled.deep_copy(), default_tokenizer().encode(text, add_special_tokens=False)
        is_allowed = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert is_allowed is (text in good), text


def nested(depth: int) -> Any:
    return {"type": "or", "elements": [nested(depth - 1)]} if depth else const("a")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "objects with a type"),
        ({}, "objects with a type"),
        ({"type": 5}, "objects with a type"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, "formats of type const_string"),
        ({"type": "const_string"}, "needs value, a text"),
        ({"type": "regex", "pattern": "["}, "cannot be used"),
        ({"type": "json_schema", "json_schema": []}, "json_schema that is an object"),
        ({"type": "json_schema", "json_schema": {"uniqueItems": True}}, "uniqueItems"),
        ({"type": "grammar", "grammar": ""}, "1 to 262144 may be"),
        ({"type": "sequence", "elements": []}, "needs elements"),
        ({**ANY_TEXT, "excludes": ["a"]}, "cannot exclude"),
        (triggered(excludes=["a"]), "cannot exclude"),
        (separated(excludes=["a"]), "cannot exclude"),
        (tag("<a>", end=None), "needs end"),
        (tag("<a>", end=[]), "needs end"),
        (triggered(triggers=["<g"]), "begins with none of the triggers"),
        (triggered(triggers=[5]), "needs triggers"),
        (triggered(tags=[5]), "which are objects"),
        (separated(separator=None), "needs separator"),
        (nested(MAX_DEPTH), "deeper than"),
        ({"type": "or", "elements": [const("a")] * MAX_FORMATS}, "holds more than"),
    ],
)
def test_a_format_that_cannot_be_had_is_refused_in_plain_words(tokens: LLTokenizer, given: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        build_matcher(tokens, grammar(given))


def test_a_grammar_grows_with_its_formats_and_not_with_their_depth() -> None:
    given: Any = JSON
    for _ in range(MAX_DEPTH // 2 - 1):
        given = tag(
            "<a>", {"type": "triggered_tags", "triggers": ["<"], "tags": [tag("<b>", given)], "at_least_one": 1}
        )
    assert len(grammar(given)) < 8192
