"""A thought is told apart from the answer, however the text comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.server.reasoning import PARSERS, Thought

CASES = [
    ("qwen3", "<think>\nHm, 1 < 2.\n</think>\n\nYes", Thought("\nHm, 1 < 2.\n", "\n\nYes")),
    ("qwen3", "  <think></think>Yes", Thought("", "Yes")),
    ("qwen3", "Yes <think>no</think>", Thought("", "Yes <think>no</think>")),
    ("qwen3", "<think>cut off </thi", Thought("cut off </thi", "")),
    ("qwen3", "<thi", Thought("", "<thi")),
    ("qwen3", "", Thought()),
    ("deepseek_r1", "Hm.</think>Yes </think>", Thought("Hm.", "Yes </think>")),
    ("deepseek_r1", "<think>Hm.</think>Yes", Thought("Hm.", "Yes")),
    ("deepseek_r1", "cut off", Thought("cut off", "")),
    ("deepseek_r1", "<thi", Thought("<thi", "")),
]


def read(name: str, pieces: list[str]) -> Thought:
    parser = PARSERS[name]()
    thoughts = [*map(parser.feed, pieces), parser.finish()]
    return Thought("".join(part.reasoning for part in thoughts), "".join(part.answer for part in thoughts))


@pytest.mark.parametrize(("name", "text", "thought"), CASES)
def test_a_reply_is_told_apart(name: str, text: str, thought: Thought) -> None:
    assert read(name, [text]) == read(name, list(text)) == thought


@given(
    name=st.sampled_from(list(PARSERS)), pieces=st.lists(st.sampled_from(["<th", "ink>", "</think>", "a", " "]))
)
def test_where_a_reply_is_cut_does_not_matter(name: str, pieces: list[str]) -> None:
    assert read(name, pieces) == read(name, ["".join(pieces)])


def test_a_thought_goes_out_while_it_is_written() -> None:
    parser = PARSERS["qwen3"]()
    assert [parser.feed(piece) for piece in ("<think>", "one ", "two</", "think>", "Yes")] == [
        Thought(),
        Thought("one "),
        Thought("two"),
        Thought(),
        Thought(answer="Yes"),
    ]
