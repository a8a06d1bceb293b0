"""Products against float64, with what is done to them, for any number of rows."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix, paired_order
from vllm_obs.engine.kernels.cpu.linear_finish import Finish
from vllm_obs.engine.kernels.cpu.program import Kernels
from vllm_obs.engine.model.linear_calls import linear_call, multiply, room_for_codes, set_linear

ROWS = [1, 2, 5, 12, 13, 37]
IN = 64


def weights(num_outputs: int, stored: str) -> torch.Tensor:
    return torch.randn(num_outputs, IN).to(getattr(torch, stored))


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-4)


def finish(
    kernels: Kernels, x: torch.Tensor, matrix: PackedMatrix, out: torch.Tensor, bias: torch.Tensor | None
) -> None:
    kind = Finish.ADD if bias is None else Finish.BIAS
    call = linear_call(matrix, kind, 0 if bias is None else bias.data_ptr())[None]
    set_linear(call, x, out, room_for_codes(0, 0))
    kernels.run(call, 2)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("num_outputs", [96, 40])
def test_products_are_those_of_the_stored_numbers(
    kernels: Kernels, stored: str, num_rows: int, num_outputs: int
) -> None:
    weight, x = weights(num_outputs, stored), torch.randn(num_rows, IN)
    found = multiply(kernels, x, PackedMatrix.pack(weight, kernels.machine), 2)
    assert close(found, x.double() @ weight.double().T)


def test_a_row_is_the_same_to_the_bit_in_any_batch_and_on_any_number_of_threads(
    kernels: Kernels, stored: str
) -> None:
    matrix, x = PackedMatrix.pack(weights(96, stored), kernels.machine), torch.randn(40, IN)
    together = multiply(kernels, x, matrix, 2)
    for first, last in ((0, 1), (3, 8), (0, 13), (17, 40)):
        assert torch.equal(multiply(kernels, x[first:last], matrix, 1), together[first:last])


@pytest.mark.parametrize("num_rows", ROWS)
def test_a_product_is_added_to_what_is_there(kernels: Kernels, stored: str, num_rows: int) -> None:
    weight, x, before = weights(64, stored), torch.randn(num_rows, IN), torch.randn(num_rows, 64)
    out = before.clone()
    finish(kernels, x, PackedMatrix.pack(weight, kernels.machine), out, None)
    assert close(out, before.double() + x.double() @ weight.double().T)


@pytest.mark.parametrize("num_rows", ROWS)
def test_a_bias_is_added(kernels: Kernels, stored: str, num_rows: int) -> None:
    weight, x, bias = weights(64, stored), torch.randn(num_rows, IN), torch.randn(64)
    out = torch.full((num_rows, 64), torch.nan)
    finish(kernels, x, PackedMatrix.pack(weight, kernels.machine), out, bias)
    assert close(out, x.double() @ weight.double().T + bias)


@pytest.mark.parametrize("num_rows", ROWS)
def test_gates_open_what_they_stand_beside(kernels: Kernels, machine: Machine, stored: str, num_rows: int) -> None:
    weight, x = weights(2 * 64, stored), 2 * torch.randn(num_rows, IN)
    matrix = PackedMatrix.pack(weight[paired_order(64, machine)], machine)
    out = torch.full((num_rows, 64), torch.nan)
    call = linear_call(matrix, Finish.SILU_MUL, 0)[None]
    set_linear(call, x, out, room_for_codes(0, 0))
    kernels.run(call, 2)
    gates, values = (x.double() @ weight.double().T).chunk(2, -1)
    assert torch.allclose(out.double(), F.silu(gates) * values, rtol=1e-4, atol=1e-3)


def test_one_row_that_is_not_a_number_stays_alone(kernels: Kernels, stored: str) -> None:
    matrix, x = PackedMatrix.pack(weights(96, stored), kernels.machine), torch.randn(20, IN)
    expected = multiply(kernels, x, matrix, 2)
    broken = x.clone()
    broken[7, 3] = torch.nan
    found = multiply(kernels, broken, matrix, 2)
    assert found[7].isnan().all()
    others = torch.arange(20) != 7
    assert torch.equal(found[others], expected[others])
