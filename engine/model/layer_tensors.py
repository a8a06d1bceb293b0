"""A model's tensors put together as layers want them: merged matrices, rotary pairs side by side."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.partition import WHOLE_MODEL, Partition
from vllm_obs.engine.model.rope import interleaved_order
from vllm_obs.engine.model.tensor_part import WHOLE, TensorPart
from vllm_obs.engine.model.weights import Weights


@dataclass(frozen=True)
class LayerTensors:
    """Reads them, in host memory; of a matrix that shards share only the shard's part."""

    architecture: ModelArchitecture
    weights: Weights
    partition: Partition = WHOLE_MODEL

    def qkv(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values in one matrix and their bias, queries and keys in interleaved rotary order."""
        shape = self.architecture
        heads, kv_heads = self.partition.heads(shape), self.partition.kv_heads(shape)
        rotary = interleaved_order(len(heads) + len(kv_heads), shape.head_dim)
        num_values = len(kv_heads) * shape.head_dim
        order = torch.cat((rotary, torch.arange(len(rotary), len(rotary) + num_values)))
        parts = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
        rows = {prefix + name: _of_heads(span, shape.head_dim) for name, span in parts.items()}
        return self._stacked_rows(rows, order)

    def gate_up(self, prefix: str, order: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The two matrices into an MLP, one above the other with their rows in `order`, and their bias, if any."""
        inner = self.partition.inner(self.architecture)
        return self._stacked_rows({prefix + "gate_proj": inner, prefix + "up_proj": inner}, order)

    def output(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The matrix that brings the heads together."""
        shape = self.architecture
        return self._columns(prefix + "o_proj", _of_heads(self.partition.heads(shape), shape.head_dim))

    def down(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The matrix out of an MLP."""
        return self._columns(prefix + "down_proj", self.partition.inner(self.architecture))

    def words(self, name: str) -> torch.Tensor:
        """The rows of a matrix with one for each word of the vocabulary."""
        return self.weights.read(name, self._part(rows=self.partition.words(self.architecture)))

    def head_norm(self, name: str) -> torch.Tensor | None:
        """The weight of a norm over heads, in interleaved rotary order; None where the model has none."""
        if not self.architecture.qk_norm:
            return None
        return self.weights.read(name)[interleaved_order(1, self.architecture.head_dim)]

    def window(self, layer: int) -> int | None:
        """The layer's sliding window in tokens."""
        shape = self.architecture
        return None if layer in shape.full_attention_layers else shape.sliding_window

    def _part(self, rows: range | None = None, columns: range | None = None) -> TensorPart:
        return WHOLE if self.partition.num_shards == 1 else TensorPart(rows, columns)

    def _stacked_rows(
        self, rows: dict[str, range], order: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of these matrices one above the other, in `order`, and their bias in float32, if any."""
        parts = {name: self._part(rows=span) for name, span in rows.items()}
        matrix = _stacked([self.weights.read(f"{name}.weight", part) for name, part in parts.items()], order)
        if not self.weights.shapes().keys() >= {f"{name}.bias" for name in rows}:
            return matrix, None
        biases = [self.weights.read(f"{name}.bias", part).float() for name, part in parts.items()]
        return matrix, _stacked(biases, order)

    def _columns(self, name: str, columns: range) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Columns of a matrix; the bias of the sum over all shards is the first shard's."""
        matrix = self.weights.read(f"{name}.weight", self._part(columns=columns))
        has_bias = f"{name}.bias" in self.weights.shapes() and self.partition.shard == 0
        return matrix, self.weights.read(f"{name}.bias").float() if has_bias else None


def _of_heads(heads: range, head_dim: int) -> range:
    """The rows or columns that these heads have."""
    return range(heads.start * head_dim, heads.stop * head_dim)


def _stacked(tensors: list[torch.Tensor], order: torch.Tensor | None) -> torch.Tensor:
    """One above the other, rows in `order`."""
    whole = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return whole if order is None else whole[order]
