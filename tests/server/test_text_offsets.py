"""A token's offset is a place in the text, the same however many tokens come at once."""

from itertools import pairwise

from http_app import tokenizer
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.server.text_offsets import TextOffsets

TEXT = "☃ 日本 🙂 é<|im_end|>x"
IDS = tokenizer().encode(TEXT)


def offsets_of(token_ids: list[int], skips_special_tokens: bool = True) -> list[int]:
    return TextOffsets(tokenizer(), skips_special_tokens).of(token_ids)


def test_tokens_of_one_character_begin_where_it_does() -> None:
    pieces = [tokenizer().token_bytes(token_id) for token_id in IDS]
    assert pieces[:4] == [b"\xe2", b"\x98", b"\x83", b" \xe6"]
    assert offsets_of(IDS[:5]) == [0, 0, 0, 1, 2]


def test_a_token_that_is_not_shown_takes_no_place() -> None:
    ids = tokenizer().encode("a<|im_end|>b")
    assert offsets_of(ids) == [0, 1, 1]
    assert offsets_of(ids, skips_special_tokens=False) == [0, 1, 1 + len("<|im_end|>")]


@given(st.lists(st.integers(0, len(IDS))), st.booleans())
def test_however_tokens_come_their_offsets_are_the_same(cuts: list[int], skips: bool) -> None:
    offsets = TextOffsets(tokenizer(), skips)
    places = [0, *sorted(cuts), len(IDS)]
    assert [place for a, b in pairwise(places) for place in offsets.of(IDS[a:b])] == offsets_of(IDS, skips)


def test_an_echoed_prompt_is_counted_from_its_end() -> None:
    offsets = TextOffsets(tokenizer(), skip_special_tokens=True)
    ids = tokenizer().encode("<|im_start|>Hi there")
    assert offsets.of_prompt(ids, "Hi there", skips_special_tokens=True) == [0, 0, 2]
    assert offsets.of(tokenizer().encode(" you")) == [8]
    assert offsets.of_prompt(ids, "<|im_start|>Hi there", skips_special_tokens=False) == [0, 12, 14]
    assert offsets.of_prompt(ids, "Hi there", skips_special_tokens=False) == [0, 0, 2]
    assert offsets.of(IDS[:1]) == [8]
