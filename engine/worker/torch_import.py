"""Loads torch, on a CPU without what only compiling a model does with it."""

import gc
import sys
from importlib import import_module
from types import ModuleType

from vllm_obs.engine.config import Device
from vllm_obs.engine.worker.threads import limit_spinning

FOR_COMPILING = ("torch._meta_registrations", "torch.distributed._meta_registrations")
"""They register what operators do to tensors that have shapes and no numbers: a quarter of torch's import."""


def import_torch(device: Device) -> None:
    """Make torch ready for serving on that device, if it is not yet.

    What is left out is not lost: whoever imports it afterwards has it.
    """
    limit_spinning()
    left_out = FOR_COMPILING if device == "cpu" and "torch" not in sys.modules else ()
    for name in left_out:
        sys.modules[name] = ModuleType(name)
    was_collecting = gc.isenabled()
    gc.disable()  # next to nothing of what torch makes is garbage, and it would all be looked at many times
    try:
        import_module("torch")
    finally:
        if was_collecting:
            gc.enable()
        for name in left_out:
            del sys.modules[name]
