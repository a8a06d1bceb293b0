"""Turns a module of LLVM's intermediate form into machine code for this CPU, and names what the code calls."""

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch
from llvmlite import ir

_OPENMP = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")


@dataclass(frozen=True)
class Machine:
    """What kernels are compiled for. `num_lanes` is how many float32 a vector register holds."""

    num_lanes: int
    num_registers: int


@cache
def this_machine() -> Machine | None:
    """This CPU, or None where kernels would not be fast or torch's threads cannot be shared."""
    if _openmp() is None:
        return None
    features = llvm.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512bw"):
        return Machine(num_lanes=16, num_registers=32)
    if features.get("avx2") and features.get("fma") and features.get("f16c"):
        return Machine(num_lanes=8, num_registers=16)
    return None


class CompiledModule:
    """Machine code that lives as long as this object. Compiling does not hold the interpreter's lock."""

    def __init__(self, module: ir.Module) -> None:
        _initialize()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
        passes.getModulePassManager().run(parsed, passes)
        self._engine: Any = llvm.create_mcjit_compiler(parsed, target)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where a function begins."""
        return int(self._engine.get_function_address(name))


def run_in_parallel(function: int, argument: int, num_threads: int) -> None:
    """Call `function(argument)` in each of torch's own threads, without the interpreter's lock, and wait."""
    openmp = _openmp()
    assert openmp is not None, "kernels are compiled only where torch's threads can be shared"
    openmp.GOMP_parallel(function, argument, num_threads, 0)


@cache
def _openmp() -> Any:
    """torch's OpenMP library: a second one would bring threads that compete with torch's for the cores."""
    if not sys.platform.startswith("linux"):
        return None
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    try:
        library = ctypes.CDLL(str(found[0])) if found else None
    except OSError:
        return None
    if library is None or not all(hasattr(library, name) for name in _OPENMP):
        return None
    library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    library.GOMP_parallel.restype = None
    return library


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library = _openmp()
    for name in _OPENMP:
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
