"""Tokenizers out of a Hugging Face directory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers as hf
from default_model import default_model_config, default_tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer

TEXTS = ["Hello 123", "🌶️🔥🧑‍🚀é日本", "<|im_start|>user\n x<|im_end|>", "  two  blanks\n\n"]


def load(folder: Path, eos: tuple[int, ...] = (2,)) -> Tokenizer:
    config = default_model_config()
    architecture = replace(config.architecture, eos_token_ids=eos)
    return load_tokenizer(replace(config, tokenizer=str(folder), architecture=architecture))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The default model's tokenizer, written as Hugging Face would."""
    backend = hf.Tokenizer.from_str(default_tokenizer()._backend.to_str())
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configure(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_it_tokenises_and_decodes_as_the_gguf_one(folder: Path) -> None:
    tokenizer = load(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == default_tokenizer().encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert tokenizer.decode(ids, False) == tokenizer._backend.decode(ids, skip_special_tokens=False)


def test_end_tokens_are_the_models_then_the_tokenizers(folder: Path) -> None:
    configure(folder, eos_token={"content": "<|endoftext|>"}, bos_token="<|im_start|>")
    tokenizer = load(folder, eos=(2, 5))
    assert tokenizer.eos_token_ids == (2, 5, 0)
    assert (tokenizer.bos_token, tokenizer.bos_token_id, tokenizer.eos_token) == (
        "<|im_start|>",
        1,
        "<|endoftext|>",
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("one", "one"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        (7, None),
    ],
)
def test_the_template_is_the_default_one(folder: Path, template: object, expected: str | None) -> None:
    configure(folder, chat_template=template)
    assert load(folder).chat_template == expected


def test_a_template_file_wins(folder: Path) -> None:
    configure(folder, chat_template="config")
    (folder / "chat_template.jinja").write_text("file")
    assert load(folder).chat_template == "file"


def test_the_back_end_puts_the_first_token_itself(folder: Path) -> None:
    file = folder / "tokenizer.json"
    backend = hf.Tokenizer.from_file(str(file))
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    backend.enable_truncation(2)
    backend.save(str(file))
    tokenizer = load(folder)
    assert tokenizer.encode("Hello 123") == [1, 19556, 216, 33, 34, 35]
    assert tokenizer.encode("Hello", add_special_tokens=False) == [19556]


def test_a_sentencepiece_tokenizer_is_read_too(tmp_path: Path) -> None:
    vocab = {token: i for i, token in enumerate(["<unk>", "▁", "a", "▁a", *(f"<0x{b:02X}>" for b in range(256))])}
    backend = hf.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a aé")) == "a aé"
    assert tokenizer.token_str(vocab["▁a"]) == " a"


def test_a_decoder_we_do_not_know_is_named(tmp_path: Path) -> None:
    backend = hf.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.CTC()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="CTC"):
        load(tmp_path)


def test_a_missing_or_broken_file_is_one_plain_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such tokenizer"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        load(tmp_path)


def test_a_broken_config_beside_it_is_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load(folder)
