"""A tokenizer out of a GGUF file's metadata."""

from typing import Any

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.sentencepiece_bpe import sentencepiece_backend
from vllm_obs.engine.frontend.vocabulary import Spelling, Vocabulary
from vllm_obs.engine.model.gguf_file import GGUFFile

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_WORDS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_WORDS_AND_SPACES}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_DIGITS, (r"\p{N}", _GPT2)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), (_GPT2,)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""For each `tokenizer.ggml.pre`, the patterns that cut a text one after the other, before merging."""

_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe")
"""Splits whose pieces are taken whole when the vocabulary has them, whatever the merges say."""

_COMPOSED = ("qwen2", "deepseek-r1-qwen", "megrez")
"""Splits before which the text is brought to Unicode's composed form (NFC)."""


def read_gguf_tokenizer(path: str, architecture: ModelArchitecture) -> tuple[hf.Tokenizer, Vocabulary]:
    """The back end and the facts. ConfigError names what is missing, broken or not supported."""
    metadata = GGUFFile(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            return _finish(_byte_level_backend(path, metadata), metadata, architecture, "byte_level")
        if kind == "llama":
            return _finish(sentencepiece_backend(metadata), metadata, architecture, "metaspace")
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception for what does not fit together
        raise ConfigError(f"{path}: the tokenizer in the file is broken: {str(error)[:200]}") from None
    raise ConfigError(f"{path}: tokenizer.ggml.model {kind!r} is not supported; supported: 'gpt2', 'llama'")


def read_gguf_words(path: str, architecture: ModelArchitecture) -> tuple[list[str], Vocabulary]:
    """The tokens as a file spells them that `read_gguf_tokenizer` can read, and the facts, without a back end."""
    metadata = GGUFFile(path).metadata
    spelling: Spelling = "byte_level" if metadata["tokenizer.ggml.model"] == "gpt2" else "metaspace"
    return metadata["tokenizer.ggml.tokens"], _vocabulary(metadata, architecture, spelling)


def _byte_level_backend(path: str, metadata: dict[str, Any]) -> hf.Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise ConfigError(f"{path}: tokenizer.ggml.pre {pre!r} is not supported; supported: {known}")
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    backend = hf.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    cuts = [pre_tokenizers.Split(hf.Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    if pre in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ValueError(f"the merge {merge[:64]!r} has no space")
    return left, right


def _finish(
    backend: hf.Tokenizer, metadata: dict[str, Any], architecture: ModelArchitecture, spelling: Spelling
) -> tuple[hf.Tokenizer, Vocabulary]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    special, added = _of_kind(metadata, _CONTROL), _of_kind(metadata, _USER_DEFINED)
    backend.add_special_tokens([hf.AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([hf.AddedToken(token, normalized=False) for token in added])
    if backend.get_vocab_size() != len(tokens):
        raise ValueError(f"it has {len(tokens)} tokens, of which {backend.get_vocab_size()} are distinct")
    return backend, _vocabulary(metadata, architecture, spelling)


def _of_kind(metadata: dict[str, Any], kind: int) -> dict[str, int]:
    """The ids of the tokens of that kind by their spelling."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise ValueError(f"it has {len(tokens)} tokens and the kinds of {len(kinds)}")
    return {tokens[i]: i for i, own in enumerate(kinds) if own == kind}


def _vocabulary(metadata: dict[str, Any], architecture: ModelArchitecture, spelling: Spelling) -> Vocabulary:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    special, added = _of_kind(metadata, _CONTROL), _of_kind(metadata, _USER_DEFINED)
    bos = _token_id(metadata, "bos", len(tokens))
    eos = _token_id(metadata, "eos", len(tokens))
    return Vocabulary(
        spelling=spelling,
        special=special,
        verbatim_ids=frozenset((*special.values(), *added.values())),
        bos_token="" if bos is None else tokens[bos],
        eos_token="" if eos is None else tokens[eos],
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys((*architecture.eos_token_ids, *(() if eos is None else (eos,))))),
        prepend_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", spelling == "metaspace")),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _token_id(metadata: dict[str, Any], name: str, num_tokens: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) and 0 <= value < num_tokens else None
