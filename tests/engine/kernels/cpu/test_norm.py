"""The norm against torch's, of rows and of heads."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from cpu_kernels import call_norm

from vllm_obs.engine.kernels.cpu.program import Kernels

EPS = 1e-5


@pytest.mark.parametrize("num_rows", [1, 3, 33])
@pytest.mark.parametrize("size", [16, 96])
def test_rows_are_scaled_to_unit_length_and_weighted(kernels: Kernels, num_rows: int, size: int) -> None:
    x, weight = 3 * torch.randn(num_rows, size), torch.randn(size)
    out = torch.full_like(x, torch.nan)
    call_norm(kernels, x, weight, out, 1, EPS)
    assert torch.allclose(out, F.rms_norm(x, (size,), weight, EPS), rtol=1e-5, atol=1e-6)


def test_heads_are_normed_each_by_itself_and_in_place(kernels: Kernels) -> None:
    x, weight = torch.randn(5, 4 * 32), torch.randn(32)
    expected = F.rms_norm(x.view(5, 4, 32), (32,), weight, EPS).flatten(1)
    call_norm(kernels, x, weight, x, 4, EPS)
    assert torch.allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_a_row_of_zeros_stays_one(kernels: Kernels) -> None:
    out = torch.full((2, 16), torch.nan)
    call_norm(kernels, torch.zeros(2, 16), torch.ones(16), out, 1, EPS)
    assert np.array_equal(out.numpy(), np.zeros((2, 16)))
