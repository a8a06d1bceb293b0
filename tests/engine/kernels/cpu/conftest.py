"""Kernels for both vector lengths: whatever this machine has, the other one is compiled and runs too."""

from functools import cache

import pytest
import torch

from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.jit import Machine, this_machine
from vllm_obs.engine.kernels.cpu.program import Kernels

MACHINES = {"avx2": Machine(num_lanes=8, num_registers=16), "avx512": Machine(num_lanes=16, num_registers=32)}

FLOATS = ["float32", "bfloat16", "float16"]

if (THIS_MACHINE := this_machine()) is None:
    pytest.skip("this machine has no compiled kernels", allow_module_level=True)
if THIS_MACHINE.adds_products:
    MACHINES["vnni"] = THIS_MACHINE


@cache
def kernels_for(machine: Machine, stored: str) -> Kernels:
    """Three query heads to a key head, heads of 32, blocks of 16; whole numbers beside float16 only."""
    forms = ("int16", "q4", "q8", "float16") if stored == "float16" else (stored,)
    return Kernels(machine, CacheShape(6, 2, 32, 16, stored), forms)


def cache_forms(machine: Machine) -> list[str]:
    """All that keys and values may be held in."""
    return [*FLOATS, "int16"] if machine.adds_products else FLOATS


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


@pytest.fixture(params=FLOATS)
def stored(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kernels(machine: Machine, stored: str) -> Kernels:
    return kernels_for(machine, stored)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
