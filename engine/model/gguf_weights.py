"""The tensors of a GGUF file, dequantised, under their Hugging Face names and in Hugging Face row order."""

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.gguf_file import BlockType, GGUFFile
from vllm_obs.engine.model.source import gguf_shapes
from vllm_obs.engine.model.tensor_names import Shape, gguf_name
from vllm_obs.engine.model.tensor_part import WHOLE, TensorPart, span

GROUP_SIZE = 32
"""How many neighbours in a row share a scale (and an offset) in Q4_0, Q4_1 and Q8_0."""

_BLOCKS_AT_ONCE = 4096
"""Few enough for the intermediate arrays to stay in cache, many enough for the library's calls to cost little."""

Bytes = npt.NDArray[np.uint8]


class GGUFWeights:
    """Reads tensors one by one; nothing is kept but the mapped file."""

    def __init__(self, path: str, architecture: ModelArchitecture) -> None:
        self._file = GGUFFile(path)
        self._architecture = architecture
        self._shapes = gguf_shapes(self._file, architecture)

    def shapes(self) -> dict[str, Shape]:
        return self._shapes

    def read(self, name: str, part: TensorPart = WHOLE) -> torch.Tensor:
        tensor = self._file.tensors[gguf_name(name)]
        kind, raw = tensor.block_type, self._file.raw(tensor.name)
        if len(tensor.shape) == 1:
            num_heads = tensor.shape[0] // self._architecture.head_dim
            values = dequantised(self._unpermuted(name, raw, num_heads), kind.name)
            return torch.from_numpy(values[span(part.rows)])
        raw = raw[span(part.rows)]
        raw = self._unpermuted(name, raw, len(raw) // self._architecture.head_dim)
        return torch.from_numpy(_columns(raw, kind, part.columns))

    def type_name(self, name: str) -> str:
        """The GGUF type a tensor is stored in."""
        return self._file.tensors[gguf_name(name)].block_type.name

    def blocks(self, name: str, part: TensorPart = WHOLE) -> torch.Tensor:
        """A matrix as it is stored, uint8 (rows, bytes per row), copied; a part has whole blocks."""
        tensor = self._file.tensors[gguf_name(name)]
        raw, kind, columns = self._file.raw(tensor.name)[span(part.rows)], tensor.block_type, part.columns
        raw = self._unpermuted(name, raw, len(raw) // self._architecture.head_dim)
        if columns is not None:
            assert columns.start % kind.num_elements == len(columns) % kind.num_elements == 0
            first, last = columns.start // kind.num_elements, columns.stop // kind.num_elements
            raw = raw[:, first * kind.num_bytes : last * kind.num_bytes]
        return torch.from_numpy(np.array(raw))

    def _unpermuted(self, name: str, raw: Bytes, num_heads: int) -> Bytes:
        """Query and key rows of llama files are stored in interleaved rotary order: put the halves apart again."""
        if not self._architecture.name.startswith(("Llama", "Mistral")):
            return raw
        if ".q_proj." not in name and ".k_proj." not in name:
            return raw
        rows = raw.reshape(num_heads, self._architecture.head_dim // 2, 2, -1)
        return rows.swapaxes(1, 2).reshape(raw.shape)


def _columns(raw: Bytes, kind: BlockType, columns: range | None) -> npt.NDArray[np.float32]:
    """The values of a matrix (rows, bytes per row) in those columns; other blocks are not looked at."""
    if columns is None:
        return _matrix(raw, kind)
    first, last = columns.start // kind.num_elements, -(-columns.stop // kind.num_elements)
    values = _matrix(raw[:, first * kind.num_bytes : last * kind.num_bytes], kind)
    num_before = columns.start - first * kind.num_elements
    return np.ascontiguousarray(values[:, num_before : num_before + len(columns)])


def _matrix(raw: Bytes, kind: BlockType) -> npt.NDArray[np.float32]:
    if kind.name in ("Q4_0", "Q4_1"):
        return four_bit_values(np.ascontiguousarray(raw), kind.name)
    if kind.name == "Q8_0":
        return eight_bit_values(np.ascontiguousarray(raw))
    return dequantised(raw, kind.name).reshape(len(raw), -1)


def dequantised(raw: Bytes, type_name: str) -> npt.NDArray[np.float32]:
    """The float32 values, flat, of a tensor's bytes in the GGUF type of that name."""
    flat = raw.reshape(-1)
    if type_name == "F32":
        return flat.view(np.float32).copy()
    # Imported here: it loads all that converts models, and the usual types do without.
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType[type_name]
    num_elements, num_bytes = GGML_QUANT_SIZES[kind]
    values = np.empty(flat.size // num_bytes * num_elements, np.float32)
    step = _BLOCKS_AT_ONCE * num_bytes
    for start in range(0, flat.size, step):
        chunk = dequantize(flat[start : start + step].reshape(1, -1), kind)
        at = start // num_bytes * num_elements
        values[at : at + chunk.size] = chunk.reshape(-1)
    return values


def four_bit_values(raw: Bytes, type_name: str) -> npt.NDArray[np.float32]:
    """The values (rows, columns) of a matrix in Q4_0 or Q4_1, (rows, bytes per row); faster than the library.

    A block is a float16 scale, in Q4_1 a float16 offset (in Q4_0 it is -8 scales), and 16 bytes: the low halves
    are the first 16 codes, the high halves the other 16. A value is code * scale + offset.
    """
    num_halves = 2 if type_name == "Q4_1" else 1
    blocks = raw.reshape(raw.shape[0], -1, 2 * num_halves + GROUP_SIZE // 2)
    parameters = blocks[:, :, : 2 * num_halves].copy().view(np.float16).astype(np.float32)
    packed = blocks[:, :, 2 * num_halves :]
    codes = np.empty((*blocks.shape[:2], 2, GROUP_SIZE // 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    scales = parameters[:, :, :1]
    offsets = parameters[:, :, 1:] if num_halves == 2 else -8 * scales
    values = np.multiply(codes.reshape(*blocks.shape[:2], GROUP_SIZE), scales, dtype=np.float32)
    values += offsets
    return values.reshape(raw.shape[0], -1)


def eight_bit_values(raw: Bytes) -> npt.NDArray[np.float32]:
    """The values (rows, columns) of a matrix in Q8_0, (rows, bytes per row).

    A block is a float16 scale and 32 signed bytes, each of which counts so many scales.
    """
    blocks = raw.reshape(raw.shape[0], -1, 2 + GROUP_SIZE)
    scales = blocks[:, :, :2].copy().view(np.float16).astype(np.float32)
    values = np.multiply(blocks[:, :, 2:].view(np.int8), scales, dtype=np.float32)
    return values.reshape(raw.shape[0], -1)
