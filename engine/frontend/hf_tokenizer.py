"""A tokenizer out of a Hugging Face directory: tokenizer.json with the facts that lie beside it."""

import json
from pathlib import Path
from typing import Any

import tokenizers as hf

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.vocabulary import Spelling, Vocabulary
from vllm_obs.engine.frontend.wordpiece import read_wordpiece


def read_hf_tokenizer(path: str, architecture: ModelArchitecture) -> tuple[hf.Tokenizer, Vocabulary]:
    """The back end and the facts. ConfigError names what is missing, broken or not supported."""
    folder = Path(path)
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    words = folder / "vocab.txt"
    if not file.is_file() and words.is_file():
        return _without_limits(read_wordpiece(words), words, architecture)
    if not file.is_file():
        raise ConfigError(
            f"{file}: no such tokenizer; --tokenizer takes a .gguf file or a folder with tokenizer.json"
        )
    try:
        backend = hf.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises a bare Exception for any broken file
        raise ConfigError(f"{file}: not a tokenizer: {str(error)[:200]}") from None
    return _without_limits(backend, file, architecture)


def _without_limits(
    backend: hf.Tokenizer, file: Path, architecture: ModelArchitecture
) -> tuple[hf.Tokenizer, Vocabulary]:
    backend.no_truncation()
    backend.no_padding()
    return backend, _vocabulary(file, backend, architecture)


def _vocabulary(file: Path, backend: hf.Tokenizer, architecture: ModelArchitecture) -> Vocabulary:
    config = _optional_json(file.parent / "special_tokens_map.json")
    config |= _optional_json(file.parent / "tokenizer_config.json")
    added = backend.get_added_tokens_decoder()
    bos, eos = (_spelling_of(config.get(name)) for name in ("bos_token", "eos_token"))
    eos_id = backend.token_to_id(eos) if eos else None
    own = architecture.eos_token_ids
    return Vocabulary(
        spelling=_spelling(file, backend),
        special={token.content: i for i, token in added.items() if token.special},
        verbatim_ids=frozenset(added),
        bos_token=bos,
        eos_token=eos,
        bos_token_id=backend.token_to_id(bos) if bos else architecture.bos_token_id,
        eos_token_ids=own if eos_id is None else tuple(dict.fromkeys((*own, eos_id))),
        chat_template=_chat_template(file.parent, config),
    )


def _spelling(file: Path, backend: hf.Tokenizer) -> Spelling:
    described = repr(backend.decoder)
    if "ByteLevel" in described:
        return "byte_level"
    if described.startswith("WordPiece("):
        return "wordpiece"
    if "Metaspace" in described or "ByteFallback" in described:
        return "metaspace"
    kind = described.partition("(")[0]
    raise ConfigError(
        f"{file}: the decoder {kind} is not supported; supported: ByteLevel, Metaspace, ByteFallback, WordPiece"
    )


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, or the entry of tokenizer_config.json (of several, the one named default)."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text("utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}.get(
            "default"
        )
    return found if isinstance(found, str) else None


def _spelling_of(entry: Any) -> str:
    """A token named in a config: its text, or a dictionary with its content."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


def _optional_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON: {error}") from None
    return values if isinstance(values, dict) else {}
