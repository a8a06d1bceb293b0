"""The ways of doing a matrix product against float64, and which of them a machine gets."""

import psutil
import pytest
import torch

from vllm_obs.engine.model import numerics
from vllm_obs.engine.model.linear import FourBitLinear, Linear, PackedLinear, PlainLinear, RowsLinear
from vllm_obs.engine.model.matrix import FourBit, dense, stacked
from vllm_obs.engine.model.numerics import Numerics, choose_numerics

CPU = torch.device("cpu")
OUT, IN = 48, 64
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture
def four_bit() -> FourBit:
    generator = torch.Generator().manual_seed(1)
    return FourBit(
        codes=torch.randint(0, 16, (OUT, IN), dtype=torch.uint8, generator=generator),
        scales=torch.rand(OUT, IN // 32, generator=generator) / 16,
        offsets=-torch.rand(OUT, IN // 32, generator=generator) / 2,
    )


@pytest.fixture
def bias() -> torch.Tensor:
    return torch.randn(OUT, generator=torch.Generator().manual_seed(2))


def relative_error(linear: Linear, weight: torch.Tensor, bias: torch.Tensor, num_rows: int) -> float:
    """Of the whole product, in the Euclidean norm."""
    x = torch.randn(num_rows, IN, generator=torch.Generator().manual_seed(num_rows))
    expected = x.double() @ weight.double().T + bias.double()
    found = linear(x)
    assert found.dtype == torch.float32
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33])
def test_float32_products_are_exact_to_rounding(four_bit: FourBit, bias: torch.Tensor, num_rows: int) -> None:
    weight = four_bit.values()
    for linear in (PlainLinear(weight, bias), PackedLinear(weight, bias)):
        assert relative_error(linear, weight, bias, num_rows) < 1e-6


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33])
def test_products_in_bfloat16_and_from_codes_are_off_by_its_rounding(
    four_bit: FourBit, bias: torch.Tensor, num_rows: int
) -> None:
    weight = four_bit.values()
    for linear in (PlainLinear(weight.bfloat16(), bias), FourBitLinear(four_bit, bias)):
        assert 1e-6 < relative_error(linear, weight, bias, num_rows) < 1e-2


def test_rows_decide_between_two_ways(bias: torch.Tensor) -> None:
    few, many = torch.zeros(OUT, IN), torch.ones(OUT, IN)
    linear = RowsLinear(PlainLinear(few, None), PlainLinear(many, None), max_few=3)
    sums = [float(linear(torch.ones(num_rows, IN)).sum()) for num_rows in (1, 3, 4)]
    assert sums == [0.0, 0.0, 4.0 * OUT * IN]


def test_stacking_keeps_codes_and_values_of_the_same_rows_together(four_bit: FourBit) -> None:
    order = torch.randperm(2 * OUT, generator=torch.Generator().manual_seed(3))
    expected = torch.cat([four_bit.values()] * 2)[order]
    both = stacked([four_bit, four_bit], order)
    assert isinstance(both, FourBit)
    assert torch.equal(dense(both), expected)
    mixed = stacked([four_bit, four_bit.values()], order)
    assert isinstance(mixed, torch.Tensor)
    assert torch.equal(mixed, expected)


@pytest.mark.parametrize(
    ("dtype", "has_instructions", "expected"),
    [
        (torch.float32, False, Numerics(CPU, F32, F32, F32, F32, "packed")),
        (torch.bfloat16, True, Numerics(CPU, BF16, BF16, BF16, BF16, "packed")),
        (torch.bfloat16, False, Numerics(CPU, BF16, F32, F32, F32, "by_rows")),
        (torch.float16, True, Numerics(CPU, F16, F32, F32, F32, "by_rows")),
    ],
)
def test_a_cpu_gets_the_numerics_it_is_fast_in(
    dtype: torch.dtype, has_instructions: bool, expected: Numerics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "multiplies_bfloat16", lambda: has_instructions)
    assert choose_numerics(dtype, CPU, 1000) == expected


def test_without_room_for_float32_copies_products_stay_plain() -> None:
    too_many = psutil.virtual_memory().total
    assert choose_numerics(torch.float16, CPU, too_many).method == "plain"


def test_a_gpu_computes_in_what_it_was_asked_for() -> None:
    gpu = torch.device("cuda")
    expected = Numerics(gpu, BF16, BF16, BF16, BF16, "plain")
    assert choose_numerics(torch.bfloat16, gpu, 1000) == expected


@pytest.mark.parametrize("has_codes", [True, False])
@pytest.mark.parametrize("num_rows", [1, 8, 9])
def test_mixed_products_are_within_bfloat16_whatever_the_rows(
    four_bit: FourBit, bias: torch.Tensor, has_codes: bool, num_rows: int
) -> None:
    mixed = Numerics(CPU, BF16, F32, F32, F32, "by_rows")
    weight = four_bit.values()
    linear = mixed.linear(four_bit if has_codes else weight, bias)
    assert relative_error(linear, weight, bias, num_rows) < 1e-2


@pytest.mark.parametrize("method", ["packed", "by_rows"])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_logits_of_a_bfloat16_model_are_finer_than_bfloat16(
    four_bit: FourBit, method: numerics.Method, num_rows: int
) -> None:
    weight = four_bit.values()
    head = Numerics(CPU, BF16, F32, F32, F32, method).lm_head(weight, weight.bfloat16())
    assert relative_error(head, weight, torch.zeros(OUT), num_rows) < 1e-3
