"""Matrix products as kernel calls: one for each form that a matrix may be held in."""

import torch

from vllm_obs.engine.kernels.cpu.block_linear import code_row_bytes
from vllm_obs.engine.kernels.cpu.block_matrix import BlockMatrix
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix
from vllm_obs.engine.kernels.cpu.linear_finish import Finish
from vllm_obs.engine.kernels.cpu.program import LABEL_FIELD, Kernel, Kernels, Records, record
from vllm_obs.engine.model.operator_label import Operator, label

Matrix = PackedMatrix | BlockMatrix
"""In floats, or in whole numbers: of 16 bits, or the blocks of its file."""


def linear_call(matrix: Matrix, finish: Finish, bias: int) -> Records:
    """A product with what does not change from step to step; `bias` is an address, 0 for none."""
    if isinstance(matrix, BlockMatrix):
        kernel, weights = Kernel[f"LINEAR_{matrix.form.upper()}"], matrix.panels
    else:
        kernel, weights = Kernel.LINEAR, matrix.strips
    fields = {3: weights.data_ptr(), 4: matrix.num_inputs, 8: len(weights), 9: int(finish), 10: bias}
    return record(kernel, fields)


def set_linear(calls: Records, x: torch.Tensor, out: torch.Tensor, codes: torch.Tensor) -> None:
    """Complete calls with x (R, in) and out (R, padded out), float32, and room for x's codes."""
    calls[:, 1:3] = x.data_ptr(), 4 * x.shape[1]
    calls[:, 5:8] = out.data_ptr(), 4 * out.shape[1], len(x)
    calls[:, 11] = codes.data_ptr()


def code_bytes(*matrices: Matrix) -> int:
    """What the codes of a row take in the largest of these products; 0 if none makes any."""
    blocks = [matrix.num_inputs for matrix in matrices if isinstance(matrix, BlockMatrix)]
    return max(map(code_row_bytes, blocks), default=0)


def room_for_codes(num_rows: int, num_bytes: int) -> torch.Tensor:
    """Where products put the codes of so many rows, one product at a time."""
    return torch.empty(num_rows * num_bytes, dtype=torch.uint8)


class PackedHead:
    """A packed matrix as a product by itself: hidden states (R, hidden) to logits, both float32."""

    def __init__(self, kernels: Kernels, matrix: Matrix) -> None:
        self._kernels = kernels
        self._matrix = matrix

    @property
    def num_bytes(self) -> int:
        """What a product reads of the matrix."""
        return self._matrix.num_bytes

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return multiply(self._kernels, hidden, self._matrix, torch.get_num_threads())


def multiply(kernels: Kernels, x: torch.Tensor, matrix: Matrix, num_threads: int) -> torch.Tensor:
    """x (R, in) float32 → (R, out) float32, a view where the last panel is padded."""
    x = x.contiguous()
    out = x.new_empty(len(x), matrix.padded_outputs)
    if len(x):
        codes = room_for_codes(len(x), code_bytes(matrix))
        call = linear_call(matrix, Finish.STORE, 0)[None]
        call[:, LABEL_FIELD] = label(Operator.LINEAR_LM_HEAD)
        set_linear(call, x, out, codes)
        kernels.run(call, num_threads)
    return out[:, : matrix.num_outputs]
