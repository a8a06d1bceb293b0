"""A GGUF file opened by mmap: its metadata, its tensor table, and the raw bytes of each tensor."""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.errors import ConfigError


class BlockType(NamedTuple):
    """How GGUF stores a tensor: `num_bytes` for every `num_elements` consecutive elements of a row."""

    name: str
    num_elements: int
    num_bytes: int


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
"""The tensor types we read, by their number in the file."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


class GGUFTensor(NamedTuple):
    """One entry of the tensor table. `shape` is in row-major order; `offset` is from the start of the file."""

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    offset: int
    num_bytes: int


class GGUFFile:
    """Reads version 2 and 3, little-endian. Every length is held against the file size: ConfigError if it lies.

    `metadata` maps keys to plain values (arrays to lists); `tensors` maps names to their place.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._buffer = _map_file(self.path)
        cursor = _Cursor(self._buffer, self.path)
        num_tensors, num_pairs = _read_header(cursor)
        self.metadata: dict[str, Any] = _read_metadata(cursor, num_pairs)
        self.tensors: dict[str, GGUFTensor] = _read_tensor_table(cursor, num_tensors, self._alignment())

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise ConfigError(f"{self.path}: general.alignment is {alignment!r}, not a number of bytes")
        return alignment

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor as uint8 (rows, bytes per row), or (1, bytes) for a vector; not copied."""
        tensor = self.tensors[name]
        flat = np.frombuffer(self._buffer, np.uint8, tensor.num_bytes, tensor.offset)
        rows = math.prod(tensor.shape[:-1])
        return flat.reshape(rows, -1)


def _map_file(path: str) -> mmap.mmap:
    try:
        with Path(path).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ConfigError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


class _Cursor:
    """A position in the file that refuses to pass its end."""

    def __init__(self, buffer: mmap.mmap, path: str) -> None:
        self.buffer = buffer
        self.path = path
        self.at = 0

    def corrupt(self, what: str) -> ConfigError:
        return ConfigError(f"{self.path}: corrupt GGUF file: {what} at byte {self.at} of {len(self.buffer)}")

    def require(self, num_bytes: int, what: str) -> None:
        """ConfigError unless `num_bytes` more are there."""
        if num_bytes > len(self.buffer) - self.at:
            raise self.corrupt(f"{what} of {num_bytes} bytes does not fit")

    def scalar(self, code: str) -> Any:
        """The next little-endian value of a struct code."""
        form = "<" + code
        size = struct.calcsize(form)
        self.require(size, "a value")
        (value,) = struct.unpack_from(form, self.buffer, self.at)
        self.at += size
        return value

    def string(self) -> str:
        """A length and that many bytes of UTF-8 (broken sequences become U+FFFD)."""
        length = self.scalar("Q")
        self.require(length, "a string")
        text = self.buffer[self.at : self.at + length].decode("utf-8", "replace")
        self.at += length
        return text

    def strings(self, count: int) -> list[str]:
        """`count` strings; a plain loop over locals, for vocabularies have a hundred thousand of them."""
        self.require(8 * count, f"an array of {count} strings")
        buffer, at, end, unpack = self.buffer, self.at, len(self.buffer), struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            start = at + 8
            if start > end:
                raise self.corrupt("an array of strings runs past the end")
            at = start + unpack(buffer, at)[0]
            if at > end:
                raise self.corrupt("an array of strings runs past the end")
            texts.append(buffer[start:at].decode("utf-8", "replace"))
        self.at = at
        return texts

    def array(self) -> list[Any]:
        """A typed array; arrays of arrays are refused."""
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            return self.strings(count)
        if kind not in _SCALARS:
            raise self.corrupt(f"an array of unknown value type {kind}")
        code = "<" + _SCALARS[kind]
        self.require(count * struct.calcsize(code), f"an array of {count} values")
        values = np.frombuffer(self.buffer, np.dtype(code), count, self.at)
        self.at += values.nbytes
        return list(values.tolist())

    def value(self) -> Any:
        """A value preceded by its type."""
        kind = self.scalar("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise self.corrupt(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """The number of tensors and of metadata pairs."""
    if cursor.buffer[:4] != b"GGUF":
        raise ConfigError(f"{cursor.path}: not a GGUF file (it begins with {cursor.buffer[:4]!r})")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ConfigError(f"{cursor.path}: GGUF version {version} is not supported (2 and 3, little-endian, are)")
    return cursor.scalar("Q"), cursor.scalar("Q")


def _read_metadata(cursor: _Cursor, num_pairs: int) -> dict[str, Any]:
    cursor.require(12 * num_pairs, f"a table of {num_pairs} metadata pairs")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value()
    return metadata


def _read_tensor_table(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
    cursor.require(24 * num_tensors, f"a table of {num_tensors} tensors")
    entries = [_read_tensor(cursor) for _ in range(num_tensors)]
    data_at = -(-cursor.at // alignment) * alignment
    tensors = {entry.name: entry._replace(offset=data_at + entry.offset) for entry in entries}
    for tensor in tensors.values():
        end = tensor.offset + tensor.num_bytes
        if end > len(cursor.buffer):
            raise ConfigError(
                f"{cursor.path}: truncated: tensor {tensor.name} ends at byte {end} of {len(cursor.buffer)}"
            )
    return tensors


def _read_tensor(cursor: _Cursor) -> GGUFTensor:
    """One table entry, its offset still relative to the data section."""
    name = cursor.string()
    num_dimensions = cursor.scalar("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.corrupt(
            f"tensor {name!r} has {num_dimensions} dimensions (1 to {_MAX_DIMENSIONS} are allowed)"
        )
    shape = tuple(cursor.scalar("Q") for _ in range(num_dimensions))[::-1]
    number, offset = cursor.scalar("I"), cursor.scalar("Q")
    block_type = BLOCK_TYPES.get(number)
    if block_type is None:
        supported = ", ".join(kind.name for kind in BLOCK_TYPES.values())
        raise ConfigError(
            f"{cursor.path}: tensor {name} has GGUF type {_type_name(number)}; supported: {supported}"
        )
    if shape[-1] % block_type.num_elements:
        raise cursor.corrupt(f"tensor {name}: rows of {shape[-1]} are not whole {block_type.name} blocks")
    num_bytes = math.prod(shape) // block_type.num_elements * block_type.num_bytes
    return GGUFTensor(name, shape, block_type, offset, num_bytes)


def _type_name(number: int) -> str:
    from gguf import GGMLQuantizationType  # slow to import, and only an error needs it

    try:
        return f"{GGMLQuantizationType(number).name} ({number})"
    except ValueError:
        return f"number {number}"
