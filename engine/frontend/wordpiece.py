"""BERT's tokenizer out of a vocab.txt, for checkpoints without a tokenizer.json."""

import json
from pathlib import Path

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from vllm_obs.engine.errors import ConfigError

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MAX_WORD_CHARS = 100
"""A longer word is unknown, as BERT has it."""


def read_wordpiece(vocabulary: Path) -> hf.Tokenizer:
    """The tokenizer whose words stand in this file, one a line; tokenizer_config.json beside it says of case.

    ConfigError where the file is no such vocabulary.
    """
    try:
        words = vocabulary.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{vocabulary}: it cannot be read as UTF-8 text") from None
    ids = {word.rstrip("\r"): number for number, word in enumerate(words) if word.strip()}
    missing = [token for token in _SPECIAL[1:4] if token not in ids]
    if missing:
        raise ConfigError(f"{vocabulary}: not a WordPiece vocabulary: it lacks {', '.join(missing)}")
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=_MAX_WORD_CHARS)
    backend = hf.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=_is_lower_case(vocabulary.parent))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    backend.add_special_tokens([token for token in _SPECIAL if token in ids])
    return backend


def _is_lower_case(folder: Path) -> bool:
    """Whether capital letters are made small, which BERT does unless it is told otherwise."""
    file = folder / "tokenizer_config.json"
    try:
        return bool(json.loads(file.read_text("utf-8")).get("do_lower_case", True))
    except (OSError, ValueError, AttributeError):
        return True
