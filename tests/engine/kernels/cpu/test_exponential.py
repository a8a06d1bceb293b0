"""Powers as attention over whole numbers takes them."""

from pathlib import Path

import pytest
import torch
from vector_kernels import by_vectors

from vllm_obs.engine.kernels.cpu.emit import Emitter, Value
from vllm_obs.engine.kernels.cpu.exponential import exp2_of_codes

from .conftest import MACHINES

pytestmark = pytest.mark.skipif("vnni" not in MACHINES, reason="only attention over whole numbers takes them")


def powers(folder: Path, exponents: torch.Tensor) -> torch.Tensor:
    """2 to the power of float32, as many as whole vectors have."""

    def change(emit: Emitter, pointer: Value, offset: Value) -> Value:
        return exp2_of_codes(emit, emit.load(pointer, offset, emit.vector))

    return by_vectors(MACHINES["vnni"], folder, exponents, torch.empty_like(exponents), change)


def test_powers_are_off_by_three_millionths_at_most(tmp_path: Path) -> None:
    exponents = torch.linspace(-120, 20, 1 << 16)
    found = powers(tmp_path, exponents).double()
    assert (found / exponents.double().exp2() - 1).abs().max() < 3.2e-6


def test_whole_powers_are_exact(tmp_path: Path) -> None:
    exponents = torch.arange(-126.0, 34.0)
    assert torch.equal(powers(tmp_path, exponents), exponents.exp2())


def test_of_nothing_comes_nothing_and_of_nan_nan(tmp_path: Path) -> None:
    exponents = torch.tensor([-torch.inf, -1e30, -200.0, torch.nan] * 4)
    found = powers(tmp_path, exponents)
    assert found.view(4, 4)[:, :3].tolist() == [[0.0] * 3] * 4
    assert found[3::4].isnan().all()
