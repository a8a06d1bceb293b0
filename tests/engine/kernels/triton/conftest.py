"""Kernels are run by Triton's interpreter: the variable that asks for it is set when they are imported."""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

INTERPRET = "TRITON_INTERPRET"
FOLDER = Path(__file__).parents[4] / "src/vllm_obs/engine/kernels/triton"

assert "triton" not in sys.modules, "something imported triton before, not interpreted"
os.environ[INTERPRET] = "1"
for module in sorted(FOLDER.glob("*.py")):
    import_module(f"vllm_obs.engine.kernels.triton.{module.stem}")
import_module("fp8_kernels")
import_module("quick_interpreter").patch_once()
del os.environ[INTERPRET]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while they run; no other test's processes inherit it."""
    monkeypatch.setenv(INTERPRET, "1")
    torch.manual_seed(0)
