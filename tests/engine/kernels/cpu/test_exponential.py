"""Powers as attention over whole numbers takes them."""

from pathlib import Path

import pytest
import torch
from llvmlite import ir

from vllm_obs.engine.kept_files import KeptFiles
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.exponential import exp2_of_codes
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, run_in_parallel

from .conftest import MACHINES

pytestmark = pytest.mark.skipif("vnni" not in MACHINES, reason="only attention over whole numbers takes them")


def powers(folder: Path, exponents: torch.Tensor) -> torch.Tensor:
    """2 to the power of float32, as many as whole vectors have."""
    target = torch.empty_like(exponents)

    def emit_all(module: ir.Module) -> None:
        emit = Emitter(module, "powers", [POINTER], MACHINES["vnni"].num_lanes)
        first, last = (emit.pointer(emit.load(emit.arguments[0], place, I64)) for place in (0, 8))

        def one(place: Value, _: list[Value]) -> None:
            emit.store(exp2_of_codes(emit, emit.load(first, place, emit.vector)), last, place)

        emit.loop(0, exponents.nbytes, 4 * emit.num_lanes, one)
        emit.finish()

    folder.chmod(0o700)
    module = CompiledModule("powers", emit_all, KeptFiles("kernels", folder))
    record = torch.tensor([exponents.data_ptr(), target.data_ptr()])
    run_in_parallel(module.address("powers"), record.data_ptr(), 1)
    return target


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
