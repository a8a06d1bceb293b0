"""The ways of doing a matrix product against float64, and which of them a machine gets."""

import psutil
import pytest
import torch

from vllm_obs.engine.model import numerics
from vllm_obs.engine.model.linear import Linear, PackedLinear, PlainLinear
from vllm_obs.engine.model.numerics import Numerics, choose_numerics

CPU = torch.device("cpu")
OUT, IN = 48, 64
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(OUT, IN, generator=torch.Generator().manual_seed(1)) / 8


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
def test_float32_products_are_exact_to_rounding(weight: torch.Tensor, bias: torch.Tensor, num_rows: int) -> None:
    for linear in (PlainLinear(weight, bias), PackedLinear(weight, bias)):
        assert relative_error(linear, weight, bias, num_rows) < 1e-6


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33])
def test_products_in_bfloat16_are_off_by_its_rounding(
    weight: torch.Tensor, bias: torch.Tensor, num_rows: int
) -> None:
    assert 1e-6 < relative_error(PlainLinear(weight.bfloat16(), bias), weight, bias, num_rows) < 1e-2


@pytest.mark.parametrize(
    ("dtype", "has_instructions", "expected"),
    [
        (F32, False, Numerics(CPU, F32, F32, F32, F32, F32, True)),
        (BF16, True, Numerics(CPU, BF16, BF16, BF16, BF16, BF16, True)),
        (BF16, False, Numerics(CPU, BF16, F32, F32, F32, F32, True)),
        (F16, True, Numerics(CPU, F16, F32, F32, F32, F32, True)),
    ],
)
def test_a_cpu_computes_in_what_it_is_fast_at(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, has_instructions: bool, expected: Numerics
) -> None:
    monkeypatch.setattr(numerics, "multiplies_bfloat16", lambda: has_instructions)
    assert choose_numerics(dtype, CPU, 1000) == expected


def test_weights_that_would_not_fit_memory_twice_as_wide_stay_narrow() -> None:
    too_many = psutil.virtual_memory().total
    assert choose_numerics(F16, CPU, too_many) == Numerics(CPU, F16, F16, F16, F32, F16, False)


def test_other_devices_compute_in_what_was_asked_for() -> None:
    gpu = torch.device("cuda")
    assert choose_numerics(BF16, gpu, 1000) == Numerics(gpu, BF16, BF16, BF16, BF16, BF16, False)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_logits_are_float32_whatever_the_model_is(weight: torch.Tensor, is_packed: bool, num_rows: int) -> None:
    head = Numerics(CPU, F32, F32, F32, F32, F32, is_packed).lm_head(weight, weight)
    assert relative_error(head, weight, torch.zeros(OUT), num_rows) < 1e-6
