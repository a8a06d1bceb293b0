"""What clients may ask their output to match becomes a grammar that allows just that, or a plain refusal."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from default_model import default_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.structured.compiler import MAX_KEPT, GrammarCompiler, build_matcher
from vllm_obs.engine.structured.params import MAX_TEXT_DEPTH
from vllm_obs.engine.structured.params import StructuredOutputsParams as Params

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 1}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAGS = {"structures": [{"begin": "<f=a>", "schema": PERSON, "end": "</f>"}], "triggers": ["<f="]}


def _endless() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    return schema


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def accepts(tokens: LLTokenizer, params: Params, text: str) -> bool:
    """Whether the text may be the whole output."""
    matcher = build_matcher(tokens, params.grammar_text())
    ids = default_tokenizer().encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("params", "good", "bad"),
    [
        (Params(json=PERSON), '{"name": "Ada", "age": 36}', '{"name": "Ada Byron", "age": 36}'),
        (Params(json=json.dumps(PERSON)), '{"name":"Ada","age":36}', '{"name":"Ada"}'),
        (Params(json=PERSON, disable_any_whitespace=True), '{"name":"Ada","age":36}', '{"name": "Ada","age":36}'),
        (Params(json=True), "[1, null]", "[1, nul]"),
        (Params(json=json.dumps(_nested(MAX_TEXT_DEPTH - 1))), "[" * 63 + '"a"' + "]" * 63, '"a"'),
        (Params(json_object=True), '{"a": [1]}', "[1]"),
        (Params(regex="[0-9]{3}-[a-z]+"), "123-abc", "123-"),
        (Params(choice=["yes", "no", 'a "quote"\n']), 'a "quote"\n', "maybe"),
        (Params(choice=["🌶️🔥🧑‍🚀é日本"]), "🌶️🔥🧑‍🚀é日本", "🌶️"),
        (Params(grammar='start: "a" start | "b"'), "aab", "aa"),
        (Params(grammar='root ::= "x" y\ny ::= [0-9]+'), "x12", "x"),
        (Params(structural_tag=TAGS), 'call <f=a>{"name":"A","age":1}</f> now', "call <f=a>{}</f>"),
        (Params(structural_tag=json.dumps(TAGS)), "no tag at all", "<f=b>"),
    ],
)
def test_a_grammar_allows_what_it_says_and_nothing_else(
    tokens: LLTokenizer, params: Params, good: str, bad: str
) -> None:
    assert (accepts(tokens, params, good), accepts(tokens, params, bad)) == (True, False)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (Params(), "structured_outputs is empty; it takes one of"),
        (Params(regex="a", choice=["b"]), "structured_outputs has regex and choice"),
        (Params(regex=""), "1 to 262144 may be"),
        (Params(regex="["), "The grammar cannot be used"),
        (Params(regex="(?=a)b"), "The grammar cannot be used"),
        (Params(regex="a" * 300_000), "300000 characters"),
        (Params(choice=[]), "choice has 0 entries"),
        (Params(choice=["a", ""]), "empty text"),
        (Params(choice="abc"), "choice must be a list"),
        (Params(json="{"), "json is not JSON"),
        (Params(json="[1]"), "must be an object"),
        (Params(json=False), "The grammar cannot be used"),
        (Params(json={"$ref": "#"}), "nothing can match it"),
        (Params(json={"uniqueItems": True}), "uniqueItems"),
        (Params(json={"enum": ["x" * 1000] * 400}), "characters"),
        (Params(json=_nested(300)), "cannot be used"),
        (Params(json=_nested(10_000)), "cannot be written"),
        (Params(json=_endless()), "cannot be written"),
        (Params(json=json.dumps(_nested(MAX_TEXT_DEPTH))), "json is nested deeper than 64 levels"),
        (Params(json='{"items":' * 20_000), "json is nested deeper than 64 levels"),
        (Params(structural_tag="[" * 66 + "]" * 66), "structural_tag is nested deeper than 64 levels"),
        (Params(grammar="start: start"), "nothing can match it"),
        (Params(grammar="::="), "cannot be"),
        (Params(structural_tag={"type": "structural_tag"}), "needs a format, or structures and triggers"),
        (Params(structural_tag={**TAGS, "triggers": ["<g"]}), "begins with none of the triggers"),
    ],
)
def test_what_cannot_be_had_is_refused_in_plain_words(tokens: LLTokenizer, params: Params, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        build_matcher(tokens, params.grammar_text())


TEXT = st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=("Cs", "Cc")), max_size=6)
"""Characters whose bytes the model has tokens for, without control characters (llguidance wants DEL escaped)."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(value=st.dictionaries(TEXT, JSON, max_size=4), indent=st.sampled_from([None, 1, 2, 4]))
def test_every_json_object_is_allowed_however_it_is_spaced(
    tokens: LLTokenizer, value: dict[str, Any], indent: int | None
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assert accepts(tokens, Params(json_object=True), text)


def test_blanks_between_words_of_json_have_an_end(tokens: LLTokenizer) -> None:
    assert accepts(tokens, Params(json_object=True), '{"a":' + " " * 24 + "1}")
    assert not accepts(tokens, Params(json_object=True), '{"a":' + " " * 25 + "1}")


@pytest.fixture
def compiler(tokens: LLTokenizer) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(lambda: tokens)
    yield made
    made.close()


def test_a_grammar_is_compiled_once_and_its_error_is_kept_with_it(compiler: GrammarCompiler) -> None:
    grammar = Params(regex="[ab]+").grammar_text()
    assert compiler.compile(grammar) is compiler.compile(grammar)
    broken = compiler.compile(Params(regex="[").grammar_text())
    assert isinstance(broken.exception(10), RequestError)


def test_only_the_last_grammars_are_kept(compiler: GrammarCompiler) -> None:
    texts = [Params(choice=[f"c{number}"]).grammar_text() for number in range(MAX_KEPT + 2)]
    compiled = [compiler.compile(text) for text in texts]
    for future in compiled:
        future.result(10)
    assert compiler.compile(texts[-1]) is compiled[-1]
    assert compiler.compile(texts[0]) is not compiled[0]


class Loads:
    """Counts how often the token table is made."""

    def __init__(self, tokens: LLTokenizer, error: Exception | None = None) -> None:
        self.num = 0
        self._tokens = tokens
        self._error = error

    def __call__(self) -> LLTokenizer:
        self.num += 1
        if self._error is not None:
            raise self._error
        return self._tokens


def test_the_token_table_is_made_for_the_first_grammar_only(tokens: LLTokenizer) -> None:
    load = Loads(tokens)
    compiler = GrammarCompiler(load)
    assert load.num == 0
    compiler.compile(Params(choice=["a"]).grammar_text()).result(10)
    compiler.compile(Params(choice=["b"]).grammar_text()).result(10)
    compiler.close()
    assert load.num == 1


def test_what_was_prepared_is_not_made_again(tokens: LLTokenizer) -> None:
    load = Loads(tokens)
    compiler = GrammarCompiler(load)
    compiler.prepare().result(10)
    assert load.num == 1
    compiler.compile(Params(choice=["a"]).grammar_text()).result(10)
    compiler.close()
    assert load.num == 1


def test_other_threads_run_while_a_grammar_is_compiled(compiler: GrammarCompiler) -> None:
    compiler.prepare().result(10)
    texts = [Params(choice=[f"{number} {place}" for place in range(3000)]).grammar_text() for number in range(5)]
    num_turns = 0
    for compiled in [compiler.compile(text) for text in texts]:
        while not compiled.done():
            num_turns += 1
            time.sleep(0.0002)
    assert num_turns > 50  # tenths of a second in all; with the interpreter's lock held there would be five


def test_a_table_that_cannot_be_made_fails_who_needs_it(tokens: LLTokenizer) -> None:
    compiler = GrammarCompiler(Loads(tokens, OSError("no tokenizer")))
    assert isinstance(compiler.prepare().exception(10), OSError)
    assert isinstance(compiler.compile(Params(choice=["a"]).grammar_text()).exception(10), OSError)
    compiler.close()


@pytest.mark.parametrize(("of_process", "of_thread"), [(0, 10), (15, 15)])
def test_who_compiles_gives_way_and_never_gains(
    monkeypatch: pytest.MonkeyPatch, of_process: int, of_thread: int
) -> None:
    asked: list[int] = []

    def refuse(which: int, who: int, niceness: int) -> None:
        asked.append(niceness)
        raise PermissionError("not allowed")

    monkeypatch.setattr(os, "getpriority", lambda which, who: of_process)
    monkeypatch.setattr(os, "setpriority", refuse)
    compiler = GrammarCompiler(lambda: None)  # type: ignore[arg-type, return-value]
    compiler.prepare().result(10)
    compiler.close()
    assert asked == [of_thread]
