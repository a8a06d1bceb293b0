"""What must be the same on every host of a run, and how two hosts find out what is not."""

import hashlib
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgpack

import vllm_obs
from vllm_obs.engine.codec_plain import unpack
from vllm_obs.engine.config import VllmConfig, to_wire

MAX_DIFFERENCES_TOLD = 3
_EDGE_BYTES = 1 << 20
_PLACES = {
    "model": ("path", "tokenizer", "model", "served_model_names", "chat_template", "generation"),
    "parallel": ("node_rank", "master_addr", "cluster_key_file", "node_timeout"),
}
"""Of each part of the configuration what a host may have as it likes, or only host 0 uses."""
_LIBRARIES = ("torch",)
"""Whose other version may compute other numbers, or not understand its like on another host."""

Settings = dict[str, Any]


def node_settings(config: VllmConfig) -> Settings:
    """By dotted name, in plain values as they come off the wire."""
    settings: Settings = {"vllm-obs": vllm_obs.__version__, "weights": weights_digest(config.model.path)}
    settings |= {library: _version(library) for library in _LIBRARIES}
    for part in ("model", "cache", "scheduler", "parallel"):
        fields = to_wire(getattr(config, part))
        left_out = _PLACES.get(part, ())
        kept = {name: value for name, value in fields.items() if name not in left_out}
        settings |= _flat(part, kept)
    plain: Settings = unpack(msgpack.packb(settings))
    return plain


def differences(here: Settings, there: Any) -> list[str]:
    """In words what differs, at most a few; empty where nothing does."""
    if not isinstance(there, dict):
        return ["it tells nothing of its settings"]
    names = [name for name in sorted({*here, *map(str, there)}) if _of(here, name) != _of(there, name)]
    told = [f"{name} is {_of(there, name)!s:.64} there and {_of(here, name)!s:.64} here" for name in names]
    left_out = [f"{len(names) - MAX_DIFFERENCES_TOLD} more"] if len(names) > MAX_DIFFERENCES_TOLD else []
    return told[:MAX_DIFFERENCES_TOLD] + left_out


def weights_digest(path: str) -> str:
    """A digest of the names, the sizes and both ends of the model's files; "" where there are none.

    Their headers are at the beginning. To read all of a large model would take as long as to load it.
    """
    place = Path(path)
    if not path or not place.exists():
        return ""
    files = [place] if place.is_file() else sorted(_weight_files(place))
    digest = hashlib.sha256()
    for file in files:
        _add(digest, file, "" if place.is_file() else file.name)
    return digest.hexdigest()[:16]


def _weight_files(place: Path) -> list[Path]:
    return [*place.glob("*.safetensors"), *place.glob("*.gguf"), *place.glob("config.json")]


def _add(digest: Any, file: Path, name: str) -> None:
    with file.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        digest.update(f"{name}:{num_bytes}:".encode())
        digest.update(stream.read(_EDGE_BYTES))
        stream.seek(max(0, num_bytes - _EDGE_BYTES))
        digest.update(stream.read(_EDGE_BYTES))


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _flat(prefix: str, value: Any) -> Settings:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: Settings = {}
    for name, entry in value.items():
        flat |= _flat(f"{prefix}.{name}", entry)
    return flat


def _of(settings: Settings, name: str) -> Any:
    return settings.get(name, "unknown")
