"""Puts the weights of a compiled decoder side by side in memory, in the order in which a step reads them."""

import torch

from vllm_obs.engine.kernels.cpu.block_matrix import BlockMatrix
from vllm_obs.engine.kernels.cpu.large_pages import move_to_large_pages
from vllm_obs.engine.model.compiled_layer import CompiledLayer
from vllm_obs.engine.model.linear_calls import Matrix
from vllm_obs.engine.worker.host import return_freed_memory


def move_in_step_order(layers: list[CompiledLayer], head: Matrix | None) -> None:
    """Give every matrix another place: nothing may know the one it has."""
    matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    if head is not None:
        matrices.append(head)
    move_to_large_pages([_numbers(matrix) for matrix in matrices], return_freed_memory)


def _numbers(matrix: Matrix) -> torch.Tensor:
    return matrix.panels if isinstance(matrix, BlockMatrix) else matrix.strips
