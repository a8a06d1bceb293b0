"""MatrixSource: a model's matrices put together as layers want them, as numbers or in the blocks of their file."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.kernels.cpu.block_matrix import FORMS, BlockMatrix
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE
from vllm_obs.engine.model.block_weights import BlockWeights, open_blocks
from vllm_obs.engine.model.layer_tensors import LayerTensors
from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.model.tensor_names import layer_prefix
from vllm_obs.engine.model.weights import Weights

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUTPUT = ("self_attn.o_proj",)
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_DOWN = ("mlp.down_proj",)


class StoredMatrix(NamedTuple):
    """rows: a float matrix (out, in); or, with the name of a GGUF type, uint8 (out, bytes per row)."""

    rows: torch.Tensor
    type_name: str | None


@dataclass(frozen=True)
class MatrixSource:
    """Reads them; of a matrix that shards share only the shard's part."""

    tensors: LayerTensors
    blocks: BlockWeights | None

    @classmethod
    def of(cls, model: ModelConfig, weights: Weights, partition: Partition) -> "MatrixSource":
        """Of a rank's part of a model. A shard that had parts of blocks has numbers."""
        local = partition.local(model.architecture)
        is_whole = local.num_heads * local.head_dim % GROUP_SIZE == local.intermediate_size % GROUP_SIZE == 0
        blocks = open_blocks(model, weights) if is_whole else None
        return cls(LayerTensors(model.architecture, weights, partition), blocks)

    def forms(self, layers: range, words: str, stored: str) -> tuple[str, ...]:
        """All that the layers' matrices and this one of words are held in; `stored` is the form of numbers."""
        names: list[tuple[str, ...]] = [(words,)]
        names += [
            _weights(layer_prefix(number), parts)
            for number in layers
            for parts in (_QKV, _OUTPUT, _GATE_UP, _DOWN)
        ]
        types = {self._type_name(each) for each in names}
        return tuple(sorted({stored if found is None else FORMS[found] for found in types}))

    def qkv(self, prefix: str) -> tuple[StoredMatrix, torch.Tensor | None]:
        """Queries, keys and values, and their bias in float32."""
        type_name = self._type_name(_weights(prefix, _QKV))
        if type_name is None:
            matrix, bias = self.tensors.qkv(prefix + "self_attn.")
            return StoredMatrix(matrix, None), bias
        has_bias = f"{prefix}{_QKV[0]}.bias" in self.tensors.weights.shapes()
        bias = self.tensors.qkv(prefix + "self_attn.")[1] if has_bias else None
        return StoredMatrix(self._block_tensors.qkv(prefix + "self_attn.")[0], type_name), bias

    def output(self, prefix: str) -> StoredMatrix:
        """The matrix that brings the heads together."""
        tensors, type_name = self._of(_weights(prefix, _OUTPUT))
        return StoredMatrix(tensors.output(prefix + "self_attn.")[0], type_name)

    def gate_up(self, prefix: str, order: torch.Tensor) -> StoredMatrix:
        """The two matrices into an MLP, their rows in this order."""
        tensors, type_name = self._of(_weights(prefix, _GATE_UP))
        return StoredMatrix(tensors.gate_up(prefix + "mlp.", order)[0], type_name)

    def down(self, prefix: str) -> StoredMatrix:
        """The matrix out of an MLP."""
        tensors, type_name = self._of(_weights(prefix, _DOWN))
        return StoredMatrix(tensors.down(prefix + "mlp.")[0], type_name)

    def words(self, name: str) -> StoredMatrix:
        """A matrix with a row for each word."""
        tensors, type_name = self._of((name,))
        return StoredMatrix(tensors.words(name), type_name)

    @property
    def _block_tensors(self) -> LayerTensors:
        assert self.blocks is not None
        return LayerTensors(self.tensors.architecture, self.blocks, self.tensors.partition)

    def _of(self, names: tuple[str, ...]) -> tuple[LayerTensors, str | None]:
        type_name = self._type_name(names)
        return self.tensors if type_name is None else self._block_tensors, type_name

    def _type_name(self, names: tuple[str, ...]) -> str | None:
        return None if self.blocks is None else self.blocks.type_name(*names)


def packed_blocks(matrix: StoredMatrix, machine: Machine) -> BlockMatrix:
    """A matrix of blocks as kernels read it."""
    assert matrix.type_name is not None
    return BlockMatrix.pack(matrix.rows, matrix.type_name, machine)


def _weights(prefix: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}{part}.weight" for part in parts)
