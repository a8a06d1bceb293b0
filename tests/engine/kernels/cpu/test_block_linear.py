"""Products of whole numbers against float64, with what is done to them, for any number of rows."""

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.kernels.cpu.block_matrix import FORMS, NUMBERS, BlockMatrix
from vllm_obs.engine.kernels.cpu.cache_asks import chunks_a_block
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear import paired_order
from vllm_obs.engine.kernels.cpu.linear_finish import Finish
from vllm_obs.engine.kernels.cpu.program import ASKED_FIELD, Kernels
from vllm_obs.engine.kernels.cpu.row_codes import LONGEST, PIECE_SIZE
from vllm_obs.engine.model.linear_calls import code_bytes, linear_call, multiply, room_for_codes, set_linear

ROWS = [1, 2, 5, 6, 7, 13, 37, 100]
IN = 256
"""Eight groups: a whole piece of a panel and part of one."""


@pytest.fixture(params=[*sorted(FORMS), NUMBERS])
def type_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stored() -> str:
    """Blocks do not ask what numbers are stored in."""
    return "float16"


def blocks(num_outputs: int, type_name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks, uint8 (out, bytes per row), and what the library says they are in float64."""
    return blocks_of(torch.randn(num_outputs, IN), type_name)


def packed(raw: torch.Tensor, type_name: str, machine: Machine) -> BlockMatrix:
    """Of blocks, or of the numbers of a matrix."""
    return BlockMatrix.round(raw, machine) if type_name == NUMBERS else BlockMatrix.pack(raw, type_name, machine)


def blocks_of(matrix: torch.Tensor, type_name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What is packed, and the numbers that it stands for."""
    if type_name == NUMBERS:
        return matrix, matrix.double()
    kind, num_outputs, values = gguf.GGMLQuantizationType[type_name], len(matrix), matrix.numpy()
    raw = gguf.quantize(values, kind).view(np.uint8).reshape(num_outputs, -1)
    return torch.from_numpy(raw), torch.from_numpy(gguf.dequantize(raw, kind)).double()


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within what rounding can do: half a step of a number, one and a half of a weight that has 3,000 of them."""
    return torch.allclose(found.double(), expected, rtol=1e-4, atol=2e-2)


def finished(kernels: Kernels, x: torch.Tensor, matrix: BlockMatrix, out: torch.Tensor, finish: Finish) -> None:
    call = linear_call(matrix, finish, 0)[None]
    room = room_for_codes(len(x), code_bytes(matrix))
    set_linear(call, x, out, room)
    kernels.run(call, 2)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("num_outputs", [192, 40])
def test_products_are_those_of_the_files_numbers(
    kernels: Kernels, type_name: str, num_rows: int, num_outputs: int
) -> None:
    (raw, weight), x = blocks(num_outputs, type_name), torch.randn(num_rows, IN)
    found = multiply(kernels, x, packed(raw, type_name, kernels.machine), 2)
    assert found.shape == (num_rows, num_outputs)
    assert close(found, x.double() @ weight.T)


def test_errors_are_about_those_of_weights_rounded_to_float16(kernels: Kernels, type_name: str) -> None:
    (raw, weight), x = blocks(192, type_name), torch.randn(64, IN)
    found = multiply(kernels, x, packed(raw, type_name, kernels.machine), 2)
    exact = x.double() @ weight.T
    of_weights = x.double() @ weight.half().double().T
    assert (found - exact).square().mean() < 1.2 * (of_weights - exact).square().mean()


def test_an_input_far_from_the_others_costs_only_its_own_piece_precision(kernels: Kernels) -> None:
    raw, weight = blocks(64, "Q4_1")
    x = torch.randn(3, IN)
    x[:, 40] = 1000.0
    found = multiply(kernels, x, packed(raw, "Q4_1", kernels.machine), 2)
    exact = x.double() @ weight.T
    rounded_weight = 1.5 * weight.square().sum(1).max().sqrt() / LONGEST
    assert (
        found - exact
    ).abs().max() < PIECE_SIZE * 0.5 * 1000 / 32766 * weight.abs().max() + 1000 * rounded_weight
    quiet = x.clone()
    quiet[:, :PIECE_SIZE] = 0.0
    found = multiply(kernels, quiet, packed(raw, "Q4_1", kernels.machine), 2)
    assert close(found, quiet.double() @ weight.T)


@pytest.mark.parametrize("kind", ["constant", "alternating", "single", "two", "random"])
def test_no_sum_of_whole_numbers_overflows(kernels: Kernels, type_name: str, kind: str) -> None:
    """Where a row and a column point the same way their product is as large as it can be."""
    shapes = {
        "constant": torch.ones(IN),
        "alternating": torch.tensor([1.0, -1.0]).repeat(IN // 2),
        "single": torch.eye(IN)[70],
        "two": torch.eye(IN)[70] - torch.eye(IN)[71],
        "random": torch.randn(IN),
    }
    (raw, weight) = blocks_of(torch.stack([shapes[kind], -shapes[kind], 1e-3 * shapes[kind]]), type_name)
    x = torch.cat((weight.float(), 1e4 * weight.float(), torch.stack(list(shapes.values()))))
    found = multiply(kernels, x, packed(raw, type_name, kernels.machine), 2)
    torch.testing.assert_close(found.double(), x.double() @ weight.T, rtol=2e-3, atol=0.15)


def test_a_row_is_the_same_to_the_bit_in_any_batch_and_on_any_number_of_threads(
    kernels: Kernels, type_name: str
) -> None:
    matrix, x = packed(blocks(192, type_name)[0], type_name, kernels.machine), torch.randn(120, IN)
    together = multiply(kernels, x, matrix, 2)
    for first, last in ((0, 1), (3, 8), (0, 13), (17, 40), (50, 119)):
        assert torch.equal(multiply(kernels, x[first:last], matrix, 1), together[first:last])


@pytest.mark.parametrize("num_rows", ROWS)
def test_a_product_is_added_to_what_is_there(kernels: Kernels, type_name: str, num_rows: int) -> None:
    (raw, weight), x, before = blocks(64, type_name), torch.randn(num_rows, IN), torch.randn(num_rows, 64)
    out = before.clone()
    finished(kernels, x, packed(raw, type_name, kernels.machine), out, Finish.ADD)
    assert close(out, before.double() + x.double() @ weight.T)


@pytest.mark.parametrize("num_rows", ROWS)
def test_gates_open_what_they_stand_beside(
    kernels: Kernels, machine: Machine, type_name: str, num_rows: int
) -> None:
    (raw, weight), x = blocks(2 * 64, type_name), 0.1 * torch.randn(num_rows, IN)
    matrix = packed(raw[paired_order(64, machine)], type_name, machine)
    out = torch.full((num_rows, 64), torch.nan)
    finished(kernels, x, matrix, out, Finish.SILU_MUL)
    gates, values = (x.double() @ weight.T).chunk(2, -1)
    assert torch.allclose(out.double(), F.silu(gates) * values, rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("broken_by", [torch.nan, torch.inf, -torch.inf])
def test_one_row_that_is_not_a_number_stays_alone(kernels: Kernels, type_name: str, broken_by: float) -> None:
    matrix, x = packed(blocks(96, type_name)[0], type_name, kernels.machine), torch.randn(20, IN)
    expected = multiply(kernels, x, matrix, 2)
    broken = x.clone()
    broken[7, 3] = broken_by
    found = multiply(kernels, broken, matrix, 2)
    assert found[7].isnan().all()
    others = torch.arange(20) != 7
    assert torch.equal(found[others], expected[others])


def test_rows_of_nothing_give_nothing(kernels: Kernels, type_name: str) -> None:
    matrix = packed(blocks(64, type_name)[0], type_name, kernels.machine)
    x = torch.zeros(2, IN)
    x[1] = 1e-38
    assert (multiply(kernels, x, matrix, 2).abs() < 1e-30).all()


@pytest.mark.parametrize("num_rows", ROWS)
def test_what_is_asked_for_meanwhile_changes_nothing(kernels: Kernels, type_name: str, num_rows: int) -> None:
    (raw, _), x = blocks(192, type_name), torch.randn(num_rows, IN)
    matrix = packed(raw, type_name, kernels.machine)
    cache = torch.zeros(5, kernels.shape.block_bytes, dtype=torch.uint8)
    numbers = torch.tensor([3, 0, 4])
    asked = torch.tensor([numbers.data_ptr(), 1, len(numbers) * chunks_a_block(kernels.shape)])
    call, out = linear_call(matrix, Finish.STORE, 0)[None], torch.empty(num_rows, matrix.padded_outputs)
    room = room_for_codes(num_rows, code_bytes(matrix))
    set_linear(call, x, out, room)
    call[:, ASKED_FIELD : ASKED_FIELD + 2] = asked.data_ptr(), cache.data_ptr()
    kernels.run(call, 2)
    assert torch.equal(out[:, :192], multiply(kernels, x, matrix, 2))
