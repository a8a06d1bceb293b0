"""Runs what is done to a vector by itself, over all numbers of a tensor."""

from collections.abc import Callable
from pathlib import Path

import torch
from llvmlite import ir

from vllm_obs.engine.kept_files import KeptFiles
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, Machine, run_in_parallel


def by_vectors(
    machine: Machine,
    folder: Path,
    source: torch.Tensor,
    target: torch.Tensor,
    change: Callable[[Emitter, Value, Value], Value],
) -> torch.Tensor:
    """Fill a target as long as the source, both whole vectors; change(emit, pointer, offset) is one of its own."""

    def emit_all(module: ir.Module) -> None:
        emit = Emitter(module, "by_vectors", [POINTER], machine.num_lanes)
        first, last = (emit.pointer(emit.load(emit.arguments[0], place, I64)) for place in (0, 8))

        def one(number: Value, _: list[Value]) -> None:
            read, written = (emit.mul(number, each.element_size()) for each in (source, target))
            emit.store(change(emit, first, read), last, written)

        emit.loop(0, len(source), machine.num_lanes, one)
        emit.finish()

    folder.chmod(0o700)
    module = CompiledModule("by_vectors", emit_all, KeptFiles("kernels", folder))
    record = torch.tensor([source.data_ptr(), target.data_ptr()])
    run_in_parallel(module.address("by_vectors"), record.data_ptr(), 1)
    return target
