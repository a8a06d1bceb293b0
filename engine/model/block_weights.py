"""A GGUF file's matrices as they lie in it, in blocks: what products with them read, and an embedding of them."""

import numpy as np
import torch

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.kernels.cpu.block_matrix import FORMS
from vllm_obs.engine.model.gguf_weights import GGUFWeights, eight_bit_values
from vllm_obs.engine.model.tensor_names import Shape
from vllm_obs.engine.model.tensor_part import WHOLE, TensorPart
from vllm_obs.engine.model.weights import Weights


class BlockWeights:
    """Reads like Weights, but gives uint8 (rows, bytes per row); has no vectors."""

    def __init__(self, weights: GGUFWeights) -> None:
        self._weights = weights

    def shapes(self) -> dict[str, Shape]:
        """Of nothing: none of these is a tensor of numbers."""
        return {}

    def read(self, name: str, part: TensorPart = WHOLE) -> torch.Tensor:
        return self._weights.blocks(name, part)

    def type_name(self, *names: str) -> str | None:
        """The GGUF type that all these matrices have, if there is a kernel that reads it."""
        types = {self._weights.type_name(name) for name in names}
        return next((found for found in types if len(types) == 1 and found in FORMS), None)


class BlockEmbedding:
    """Rows of a matrix in Q8_0, uint8 (vocab, bytes per row), in float32."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(eight_bit_values(np.take(self._rows.numpy(), token_ids.numpy(), axis=0)))


def open_blocks(model: ModelConfig, weights: Weights) -> BlockWeights | None:
    """The blocks of a model that is to be computed in them."""
    is_wanted = model.quantization != "none" and model.dtype != "float32"
    return BlockWeights(weights) if is_wanted and isinstance(weights, GGUFWeights) else None
