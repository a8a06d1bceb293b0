"""On a CPU torch is loaded without what only compiling needs, computes as ever, and the rest can still be had."""

import gc
import subprocess
import sys

import pytest

from vllm_obs.engine.worker.torch_import import FOR_COMPILING, import_torch

SCRIPT = """
import sys
from vllm_obs.engine.worker.torch_import import import_torch
import_torch({device!r})
import torch
print([name for name in {names!r} if name in sys.modules])
matrix = torch.arange(6.0).reshape(2, 3)
print((matrix @ matrix.T).tolist())
"""
COMPILES = """
import torch._meta_registrations
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    print(tuple((torch.empty(4, 3) @ torch.empty(3, 5)).shape))
"""


def run(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def test_on_a_cpu_what_only_compiling_needs_is_left_out_until_somebody_wants_it() -> None:
    loaded, products, shape = run(SCRIPT.format(device="cpu", names=FOR_COMPILING) + COMPILES)
    assert loaded == "[]"
    assert products == "[[5.0, 14.0], [14.0, 50.0]]"
    assert shape == "(4, 5)"


def test_on_a_gpu_all_of_torch_is_loaded() -> None:
    loaded, _ = run(SCRIPT.format(device="cuda", names=FOR_COMPILING))
    assert loaded == str(list(FOR_COMPILING))


@pytest.mark.parametrize("is_collecting", [True, False])
def test_garbage_is_collected_afterwards_as_it_was_before(is_collecting: bool) -> None:
    gc.enable() if is_collecting else gc.disable()
    try:
        import_torch("cpu")
        assert gc.isenabled() is is_collecting
    finally:
        gc.enable()
