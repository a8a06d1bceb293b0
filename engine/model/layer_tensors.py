"""A model's tensors put together as layers want them: merged matrices, rotary pairs side by side."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.rope import interleaved_order
from vllm_obs.engine.model.weights import Weights


@dataclass(frozen=True)
class LayerTensors:
    """Reads them, in host memory."""

    architecture: ModelArchitecture
    weights: Weights

    def qkv(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values in one matrix and their bias, queries and keys in interleaved rotary order."""
        shape = self.architecture
        rotary = interleaved_order(shape.num_heads + shape.num_kv_heads, shape.head_dim)
        num_values = shape.num_kv_heads * shape.head_dim
        order = torch.cat((rotary, torch.arange(len(rotary), len(rotary) + num_values)))
        return self.merged([prefix + part for part in ("q_proj", "k_proj", "v_proj")], order)

    def merged(
        self, parts: list[str], order: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The matrices of these names one above the other, rows in `order`, and their bias in float32, if any."""
        matrix = _stacked([self.weights.read(part + ".weight") for part in parts], order)
        names = [part + ".bias" for part in parts]
        if not self.weights.shapes().keys() >= set(names):
            return matrix, None
        return matrix, _stacked([self.weights.read(name).float() for name in names], order)

    def head_norm(self, name: str) -> torch.Tensor | None:
        """The weight of a norm over heads, in interleaved rotary order; None where the model has none."""
        if not self.architecture.qk_norm:
            return None
        return self.weights.read(name)[interleaved_order(1, self.architecture.head_dim)]

    def window(self, layer: int) -> int | None:
        """The layer's sliding window in tokens."""
        shape = self.architecture
        return None if layer in shape.full_attention_layers else shape.sliding_window


def _stacked(tensors: list[torch.Tensor], order: torch.Tensor | None) -> torch.Tensor:
    """One above the other, rows in `order`."""
    whole = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return whole if order is None else whole[order]
