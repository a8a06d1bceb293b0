"""What a model's directory says of its vectors, in the files that sentence-transformers writes."""

from pathlib import Path
from typing import Any

import orjson

from vllm_obs.engine.config import ModelArchitecture, PoolingConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.pooling.kinds import POOLING_KINDS, PoolingKind

_MODES: dict[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
_MAX_FILE_BYTES = 1 << 20


def model_pooling(path: Path, architecture: ModelArchitecture) -> PoolingConfig:
    """How the model pools: as its modules say, else by an encoder's first token or a decoder's last, normalised.

    ConfigError for modules that are not known here: without them its vectors would be wrong.
    """
    values = _read(path / "config.json") or {}
    sizes = values.get("matryoshka_dimensions")
    sizes = tuple(size for size in sizes if type(size) is int) if isinstance(sizes, list) else ()
    kind, normalize = _module_pooling(path) or ("cls" if architecture.is_encoder else "last", True)
    return PoolingConfig(kind, normalize, bool(values.get("is_matryoshka")) or bool(sizes), sizes)


def longest_text(path: Path) -> int | None:
    """The longest text in tokens that the model was made for; None where nothing says so."""
    length = (_read(path / "sentence_bert_config.json") or {}).get("max_seq_length")
    return length if type(length) is int and length > 0 else None


def _module_pooling(path: Path) -> tuple[PoolingKind, bool] | None:
    modules = _read(path / "modules.json")
    if not isinstance(modules, list):
        return None
    kind: PoolingKind | None = None
    normalize = False
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if name not in _SUPPORTED_MODULES:
            raise ConfigError(
                f"{path}/modules.json: the module {name[:64] or '?'} is not supported; supported: "
                f"{', '.join(_SUPPORTED_MODULES)}"
            )
        if name == "Pooling":
            kind = _pooling_mode(path / str(module.get("path", "")) / "config.json")
        normalize = normalize or name == "Normalize"
    return None if kind is None else (kind, normalize)


def _pooling_mode(file: Path) -> PoolingKind:
    values = _read(file) or {}
    named = [values["pooling_mode"]] if isinstance(values.get("pooling_mode"), str) else []
    named += [mode for key, mode in _MODES.items() if values.get(key) is True]
    unknown = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(named) == 1 and not set(unknown) - set(_MODES):
        for kind in POOLING_KINDS:
            if named[0] in (kind, f"{kind}token"):
                return kind
    raise ConfigError(f"{file}: it pools in none of the ways known here; supported: {', '.join(POOLING_KINDS)}")


def _read(file: Path) -> Any:
    """The JSON of a file; None where there is no such file. ConfigError where it is none."""
    if not file.is_file():
        return None
    if (size := file.stat().st_size) > _MAX_FILE_BYTES:
        raise ConfigError(f"{file} has {size} bytes; at most {_MAX_FILE_BYTES} are read")
    try:
        return orjson.loads(file.read_bytes())
    except ValueError:
        raise ConfigError(f"{file}: not valid JSON") from None
