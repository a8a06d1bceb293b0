"""The headers of a model's safetensors files, checked against the files before anything is loaded."""

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER_BYTES = 100_000_000
_COUNTED = "position_ids"
"""What the names of tensors end with that only count from 0 on, which some checkpoints hold; nobody reads them."""


class StoredTensor(NamedTuple):
    """Where a tensor is: its file, and its shape and dtype as that file's header states them.

    `name` is what it is called there, where it is known by another name here.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str
    name: str = ""


def read_tensor_table(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model directory, from one file or from the files its index names."""
    table: dict[str, StoredTensor] = {}
    for file in _weight_files(directory):
        table.update(_read_file_header(file))
    return table


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX_FILE
    if not index.is_file():
        single = directory / SINGLE_FILE
        if single.is_file():
            return [single]
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            raise ConfigError(f"{directory}: there is no {SINGLE_FILE} and no {INDEX_FILE}")
        return found
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index}: 'weight_map' is missing or empty")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise ConfigError(f"{index}: the file {name!r} it names is not in the directory")
    return [directory / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ConfigError when it cannot be read or is something else."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no JSON object")
    return value


def _read_file_header(path: Path) -> dict[str, StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ConfigError(f"{path}: corrupt safetensors file: a header of {length} bytes in a file of {size}")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: corrupt safetensors file: its header is not valid JSON") from None
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: corrupt safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    num_data_bytes = size - 8 - length
    return {
        name: _stored_tensor(path, name, entry, num_data_bytes)
        for name, entry in header.items()
        if not name.endswith(_COUNTED)
    }


def _stored_tensor(path: Path, name: str, entry: Any, num_data_bytes: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = str(entry["dtype"]), tuple(map(int, entry["shape"])), entry["data_offsets"]
        span = int(end) - int(begin)
    except (TypeError, KeyError, ValueError):
        raise ConfigError(f"{path}: corrupt safetensors file: the entry of tensor {name} is malformed") from None
    if begin < 0 or end > num_data_bytes:
        raise ConfigError(f"{path}: truncated: tensor {name} ends at data byte {end} of {num_data_bytes}")
    if dtype not in _DTYPE_BYTES:
        raise ConfigError(f"{path}: tensor {name} has dtype {dtype}; supported: {', '.join(_DTYPE_BYTES)}")
    if span != math.prod(shape) * _DTYPE_BYTES[dtype]:
        raise ConfigError(
            f"{path}: corrupt safetensors file: tensor {name} of shape {list(shape)} has {span} bytes"
        )
    return StoredTensor(path, shape, dtype)
