"""Text token by token: whole characters only, and together what decoding everything gives."""

import random

import pytest
from default_model import default_model_config, default_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine.frontend.detokenizer import Detokenizer
from vllm_obs.engine.frontend.tokenizer import load_tokenizer

token_ids = st.integers(0, 49151) | st.integers(0, 300)
"""Any token, and often a special one or half a character (the single bytes come first)."""


def streamed(ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(default_tokenizer(), skip_special_tokens)
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.finish()]


@given(st.lists(token_ids, max_size=40), st.booleans())
@settings(max_examples=120, deadline=None)
def test_streamed_text_is_the_decoded_text(ids: list[int], skip: bool) -> None:
    assert "".join(streamed(ids, skip)) == default_tokenizer().decode(ids, skip)


@given(st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs", "Cc"]), max_size=30))
@settings(max_examples=120, deadline=None)
def test_no_piece_of_a_text_the_vocabulary_has_bytes_for_has_a_replacement_character(text: str) -> None:
    pieces = streamed(default_tokenizer().encode(text), skip_special_tokens=False)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert not any(0xD800 <= ord(char) <= 0xDFFF for piece in pieces for char in piece)


def test_a_character_comes_with_its_last_token() -> None:
    assert streamed(default_tokenizer().encode("a🌶b")) == ["a", "", "", "🌶", "b", ""]


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_an_unfinished_character_becomes_one_replacement_character_at_the_end(num_tokens: int) -> None:
    ids = default_tokenizer().encode("🌶")[:num_tokens]
    assert streamed(ids) == [""] * num_tokens + ["\ufffd"]


def test_an_impossible_byte_is_replaced_at_once() -> None:
    half = default_tokenizer().encode("🌶")[0]
    a = default_tokenizer().encode("a")[0]
    assert streamed([half, a]) == ["", "\ufffda", ""]


def test_a_skipped_special_token_does_not_break_a_character() -> None:
    first, *rest = default_tokenizer().encode("🌶")
    assert "".join(streamed([first, 1, *rest])) == "🌶"


@pytest.mark.parametrize("skips", [True, False])
def test_texts_that_were_prepared_are_those_that_would_be_found(skips: bool) -> None:
    found, prepared = (load_tokenizer(default_model_config()) for _ in range(2))
    prepared.prepare_texts()
    assert len(prepared.whole_texts) > 40_000
    rng = random.Random(5)
    for _ in range(300):
        ids = rng.choices(range(found.vocab_size), k=12)
        one, other = Detokenizer(found, skips), Detokenizer(prepared, skips)
        assert [one.feed(each) for each in ids] == [other.feed(each) for each in ids]
    assert found.whole_texts.items() <= prepared.whole_texts.items()
