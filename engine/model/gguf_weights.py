"""The tensors of a GGUF file, dequantised, under their Hugging Face names and in Hugging Face row order."""

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.gguf_file import GGUFFile
from vllm_obs.engine.model.source import gguf_shapes
from vllm_obs.engine.model.tensor_names import Shape, gguf_name

_BLOCKS_AT_ONCE = 4096
"""Few enough for the intermediate arrays to stay in cache, many enough for the library's calls to cost little."""


class GGUFWeights:
    """Reads tensors one by one; nothing is kept but the mapped file."""

    def __init__(self, path: str, architecture: ModelArchitecture) -> None:
        self._file = GGUFFile(path)
        self._architecture = architecture

    def shapes(self) -> dict[str, Shape]:
        return gguf_shapes(self._file, self._architecture)

    def read(self, name: str) -> torch.Tensor:
        tensor = self._file.tensors[gguf_name(name)]
        raw = self._unpermuted(name, self._file.raw(tensor.name))
        return torch.from_numpy(dequantised(raw, tensor.block_type.name).reshape(tensor.shape))

    def _unpermuted(self, name: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Query and key rows of llama files are stored in interleaved rotary order: put the halves apart again."""
        if not self._architecture.name.startswith(("Llama", "Mistral")):
            return raw
        num_heads = {"q_proj": self._architecture.num_heads, "k_proj": self._architecture.num_kv_heads}
        for part, heads in num_heads.items():
            if f".{part}." in name:
                rows = raw.reshape(heads, self._architecture.head_dim // 2, 2, -1)
                return rows.swapaxes(1, 2).reshape(raw.shape)
        return raw


def dequantised(raw: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    """The float32 values, flat, of a tensor's bytes in the GGUF type of that name."""
    kind = GGMLQuantizationType[type_name]
    flat = raw.reshape(-1)
    if type_name == "F32":
        return flat.view(np.float32).copy()
    num_elements, num_bytes = GGML_QUANT_SIZES[kind]
    values = np.empty(flat.size // num_bytes * num_elements, np.float32)
    step = _BLOCKS_AT_ONCE * num_bytes
    for start in range(0, flat.size, step):
        chunk = dequantize(flat[start : start + step].reshape(1, -1), kind)
        at = start // num_bytes * num_elements
        values[at : at + chunk.size] = chunk.reshape(-1)
    return values
