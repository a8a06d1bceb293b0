"""A byte-level token stands for the bytes of its letters, and for its own spelling where a letter is no byte."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.engine.frontend.vocabulary import _BYTE_OF_CHAR, Vocabulary

BYTE_LEVEL = Vocabulary("byte_level", special={}, verbatim_ids=frozenset({7}))


@given(st.text(st.sampled_from([*_BYTE_OF_CHAR, *map(chr, range(300)), "☃", "𝄞"])))
def test_each_letter_is_a_byte_or_the_token_is_text(token: str) -> None:
    is_bytes = all(char in _BYTE_OF_CHAR for char in token)
    expected = bytes(_BYTE_OF_CHAR[char] for char in token) if is_bytes else token.encode()
    assert BYTE_LEVEL.spell(1, token) == expected


def test_every_byte_has_a_letter_and_verbatim_tokens_are_text() -> None:
    letters = "".join(sorted(_BYTE_OF_CHAR, key=_BYTE_OF_CHAR.__getitem__))
    assert BYTE_LEVEL.spell(1, letters) == bytes(range(256))
    assert BYTE_LEVEL.spell(7, "Ġ") == "Ġ".encode()
