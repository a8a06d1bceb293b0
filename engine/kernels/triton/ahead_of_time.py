"""Launches compiled for a card that is not there, and what the assembler says the code takes."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vllm_obs.engine.kernels.triton.launch import Argument, Launch

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Shared memory that one program may take (CUDA programming guide, technical specifications per capability)."""


@dataclass(frozen=True)
class CodeFacts:
    """What one compiled kernel takes: registers a thread, bytes a thread keeps in memory (spills and stack),
    shared memory a program."""

    num_registers: int
    local_bytes: int
    shared_bytes: int
    code_bytes: int


def compile_for(launch: Launch, capability: int) -> CodeFacts:
    """Compile the launch's kernel with its constants and configuration; raises what the compiler raises."""
    config = launch.config
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(_source(launch), target=target, options=options)
    cubin = compiled.asm["cubin"]
    usage = _resource_usage(cubin)
    return CodeFacts(usage["REG"], usage["STACK"] + usage["LOCAL"], compiled.metadata.shared, len(cubin))


def _source(launch: Launch) -> ASTSource:
    """The kernel's types as a launch on a device would find them: multiples of 16 are told to the compiler."""
    signature, attributes = {}, {}
    constants: dict[str, Any] = dict(launch.all_constants)
    for index, name in enumerate(launch.kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        argument = launch.arguments[name]
        signature[name] = _type_of(argument)
        if not name.startswith("num_") and _is_aligned(argument):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, attributes)


def _type_of(argument: Argument) -> str:
    if isinstance(argument, torch.Tensor):
        return "*" + _TYPES[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def _is_aligned(argument: Argument) -> bool:
    """Tensors are taken as allocated by torch, which aligns them."""
    return isinstance(argument, torch.Tensor) or (isinstance(argument, int) and argument % 16 == 0)


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED, LOCAL, … by the disassembler that comes with Triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    line = next(line for line in printed.splitlines() if "REG:" in line)
    return {key: int(value) for key, _, value in (word.partition(":") for word in line.split()) if value.isdigit()}
