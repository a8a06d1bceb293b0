"""Turns a module of LLVM's intermediate form into machine code for this CPU, and names what the code calls."""

import ctypes
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import torch
from llvmlite import ir

from vllm_obs.engine.kept_files import KeptFiles
from vllm_obs.engine.kernels.cpu.emit import new_module

_OPENMP = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")


@dataclass(frozen=True)
class Machine:
    """What kernels are compiled for. `num_lanes` is how many float32 a vector register holds.

    With `adds_products` one instruction multiplies 16-bit numbers and adds the products (AVX-512 VNNI).
    """

    num_lanes: int
    num_registers: int
    adds_products: bool = False


@cache
def this_machine() -> Machine | None:
    """This CPU, or None where kernels would not be fast or torch's threads cannot be shared."""
    if _openmp() is None:
        return None
    features = llvm.get_host_cpu_features()
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512dq")):
        return Machine(num_lanes=16, num_registers=32, adds_products=bool(features.get("avx512vnni")))
    if features.get("avx2") and features.get("fma") and features.get("f16c"):
        return Machine(num_lanes=8, num_registers=16)
    return None


class CompiledModule:
    """Machine code that lives as long as this object. Compiling does not hold the interpreter's lock.

    `name` says all that what `emit` writes depends on beside this folder's sources: code that was kept under it by
    an earlier process is loaded, and nothing is emitted.
    """

    def __init__(self, name: str, emit: Callable[[ir.Module], None], kept: KeptFiles | None = None) -> None:
        _initialize()
        kept = kept or KeptFiles("kernels")
        key = _code_key(name)
        code = None if key is None else kept.find(key)
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=_features(), opt=3
        )
        self.was_kept = code is not None
        module = _parsed(None if self.was_kept else emit)
        if not self.was_kept:
            passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
            passes.getModulePassManager().run(module, passes)
        made: list[bytes] = []
        self._engine: Any = llvm.create_mcjit_compiler(module, target)
        self._engine.set_object_cache(lambda _, made_code: made.append(made_code), lambda _: code)
        self._engine.finalize_object()
        if key is not None and made:
            kept.keep(key, made[0])

    def address(self, name: str) -> int:
        """Where a function begins."""
        return int(self._engine.get_function_address(name))


def _parsed(emit: Callable[[ir.Module], None] | None) -> Any:
    """The module in LLVM's own form; an empty one for code that is there already."""
    module = new_module()
    if emit is not None:
        emit(module)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return parsed


def _features() -> str:
    """What this CPU has; and that its 16-bit multiply-add is to be used: LLVM takes two instructions instead."""
    return f"{llvm.get_host_cpu_features().flatten()},+fast-dpwssd"


def _code_key(name: str) -> bytes | None:
    """All that code depends on; None where the sources are not there to tell."""
    sources = _sources_digest()
    versions = (llvmlite.__version__, str(llvm.llvm_version_info))
    parts = (name, sources, *versions, llvm.get_host_cpu_name(), _features())
    return "\n".join(parts).encode() if sources else None


@cache
def _sources_digest() -> str:
    """Of the modules that emit kernels; empty where there are none."""
    found = hashlib.sha256()
    paths = sorted(Path(__file__).parent.glob("*.py"))
    for path in paths:
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest() if paths else ""


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
