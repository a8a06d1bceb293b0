"""Tokenizers out of GGUF metadata: the splits by name, sentencepiece, and broken files."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
from default_model import default_model_config

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.detokenizer import Detokenizer
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.frontend.vocabulary import _BYTE_OF_CHAR
from vllm_obs.engine.structured.token_table import TokenWords

BYTES = sorted(_BYTE_OF_CHAR)
MERGES = ["1 2", "12 3", "123 4", "Ġ a", "Ċ Ċ", "' S", "a b"]
JOINED = [merge.replace(" ", "") for merge in MERGES]
TOKENS = [*BYTES, *JOINED, "<s>", "<tool>", "1b"]
KINDS = [1] * (len(BYTES) + len(JOINED)) + [3, 4, 1]


class FakeFile:
    """A GGUFFile with the metadata of the test."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, path: str) -> None:
        self.path = path


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(**metadata: Any) -> Tokenizer:
        values = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
        monkeypatch.setattr(FakeFile, "metadata", values)
        monkeypatch.setattr("vllm_obs.engine.frontend.gguf_tokenizer.GGUFFile", FakeFile)
        return load_tokenizer(replace(default_model_config(), tokenizer="fake.gguf"))

    return load


def byte_level(pre: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": TOKENS,
        "token_type": KINDS,
        "merges": MERGES,
        "bos_token_id": TOKENS.index("<s>"),
        **changes,
    }


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_str(i) for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("gpt-2", "1234", ["1234"]),
        ("default", "1234", ["123", "4"]),
        ("gpt-2", "\n\n", ["\n\n"]),
        ("gpt-2", "x'S", ["x", "'", "S"]),
        ("qwen2", "x'S", ["x", "'S"]),
        ("llama-bpe", " a ab", [" a", " a", "b"]),
    ],
)
def test_each_split_cuts_as_its_family(load: Any, pre: str, text: str, expected: list[str]) -> None:
    assert pieces(load(**byte_level(pre)), text) == expected


def test_qwen_composes_characters(load: Any) -> None:
    assert load(**byte_level("qwen2")).encode("e\u0301") == load(**byte_level("qwen2")).encode("é")
    assert load(**byte_level("gpt-2")).encode("e\u0301") != load(**byte_level("gpt-2")).encode("é")


def test_special_and_user_defined_tokens_are_matched_and_spelled(load: Any) -> None:
    tokenizer = load(**byte_level("gpt-2"))
    assert pieces(tokenizer, "<s>a<tool>") == ["<s>", "a", "<tool>"]
    special, tool = TOKENS.index("<s>"), TOKENS.index("<tool>")
    assert (tokenizer.is_special(special), tokenizer.is_special(tool)) == (True, False)
    marked = tokenizer.encode_marked("<s>a<\ue000s><tool>", "\ue000")
    assert [tokenizer.token_str(i) for i in marked] == ["<s>", "a", "<", "s", ">", "<tool>"]


def test_the_first_token_is_put_in_front_only_if_the_model_wants_it(load: Any) -> None:
    first = TOKENS.index("<s>")
    tokenizer = load(**byte_level("gpt-2", add_bos_token=True))
    assert tokenizer.encode("a")[0] == first
    assert first not in tokenizer.encode("a", add_special_tokens=False)
    assert first not in load(**byte_level("gpt-2")).encode("a")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "klingon"}, "klingon"),
        ({"model": "bert"}, "bert"),
        ({"merges": ["nospace"]}, "nospace"),
        ({"merges": ["1 unknown"]}, "broken"),
        ({"tokens": TOKENS[:-1]}, "broken"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "distinct"),
        ({"tokens": None}, "broken"),
    ],
)
def test_a_broken_file_is_one_plain_line(load: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(**{**byte_level("gpt-2"), **changes})
    assert "\n" not in str(caught.value)


PIECES = ["<unk>", "<s>", "</s>", "<0x00>", "▁", "h", "e", "l", "o", "▁h", "el", "lo", "▁hel", "▁hello", "hello"]
EXTRA = [f"<0x{byte:02X}>" for byte in range(1, 256)]


def sentencepiece(**changes: Any) -> dict[str, Any]:
    tokens = [*PIECES, *EXTRA]
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": [-float(i) for i in range(len(tokens))],
        "token_type": [2, 3, 3, 6, *[1] * (len(PIECES) - 4), *[6] * len(EXTRA)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }


def test_sentencepiece_joins_by_score_and_falls_back_to_bytes(load: Any) -> None:
    tokenizer = load(**sentencepiece())
    assert [tokenizer._backend.id_to_token(i) for i in tokenizer.encode("hello hé")] == [
        "<s>", "▁hello", "▁h", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("hello hé")) == "hello hé"


def test_sentencepiece_output_keeps_its_blanks_and_characters(load: Any) -> None:
    tokenizer = load(**sentencepiece())
    ids = tokenizer.encode("hello hé", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.feed(i) for i in ids] == [" hello", " h", "", "é"]


def test_sentencepiece_without_a_blank_in_front(load: Any) -> None:
    tokenizer = load(**sentencepiece(add_space_prefix=False, add_bos_token=False))
    assert pieces(tokenizer, "el lo") == ["el", " ", "lo"]


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_the_words_alone_are_those_of_the_tokenizer(load: Any, kind: str) -> None:
    tokenizer = load(**(byte_level("smollm") if kind == "byte level" else sentencepiece()))
    model = replace(default_model_config(), tokenizer="fake.gguf")
    words, read = TokenWords.load(model), TokenWords.of(tokenizer, tokenizer.vocab_size)
    assert words.tokens == read.tokens
    assert (words.special_ids, words.eos_ids, words.bos_id) == (read.special_ids, read.eos_ids, read.bos_id)
    assert words.encode("a b") == read.encode("a b")


def test_the_words_of_a_broken_file_are_refused(load: Any) -> None:
    load(**byte_level("smollm"))
    del FakeFile.metadata["tokenizer.ggml.tokens"]
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenWords.load(replace(default_model_config(), tokenizer="fake.gguf"))
