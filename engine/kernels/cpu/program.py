"""A list of kernel calls that torch's threads run one after another without coming back to Python."""

from enum import IntEnum
from functools import cache

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.kernels.cpu.attention import emit_attention
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter, Value, new_module
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, Machine, run_in_parallel
from vllm_obs.engine.kernels.cpu.linear import emit_linear
from vllm_obs.engine.kernels.cpu.norm import emit_norm
from vllm_obs.engine.kernels.cpu.rotate import emit_rotate

RECORD_FIELDS = 12
"""int64 fields of a call: the kernel's number, then what the kernel itself takes, the rest unused."""

Records = npt.NDArray[np.int64]


class Kernel(IntEnum):
    """The number of each kernel in a program."""

    NORM = 0
    LINEAR = 1
    ROTATE = 2
    ATTEND = 3


class Kernels:
    """The kernels for one model's shapes, compiled; `run` runs programs of them."""

    def __init__(self, machine: Machine, shape: CacheShape, weights_stored: str) -> None:
        module = new_module()
        emit_norm(module, machine)
        emit_linear(module, machine, weights_stored)
        emit_rotate(module, machine, shape)
        emit_attention(module, machine, shape)
        _emit_program(module, machine)
        self.machine = machine
        self.shape = shape
        self._module = CompiledModule(module)
        self._program = self._module.address("program")

    def run(self, records: Records, num_threads: int) -> None:
        """Run calls (int64 (calls, RECORD_FIELDS)) in order, each after the one before has ended."""
        assert records.shape[1] == RECORD_FIELDS
        assert records.flags.c_contiguous
        head = np.array([records.ctypes.data, len(records)], np.int64)
        run_in_parallel(self._program, head.ctypes.data, num_threads)


@cache
def compiled_kernels(machine: Machine, shape: CacheShape, weights_stored: str) -> Kernels:
    """The kernels for these shapes, compiled once a process."""
    return Kernels(machine, shape, weights_stored)


def _emit_program(module, machine: Machine) -> None:  # type: ignore[no-untyped-def]
    emit = Emitter(module, "program", [POINTER], machine.num_lanes)
    records, count = emit.fields(emit.arguments[0], 2)

    def one(number: Value, _: list[Value]) -> None:
        record = emit.at(emit.pointer(records), emit.mul(number, 8 * RECORD_FIELDS))
        fields = emit.at(record, 8)
        functions = {kernel: module.get_global(kernel.name.lower()) for kernel in Kernel}

        def caller(function: Value):  # type: ignore[no-untyped-def]
            return lambda: emit.build.call(function, [fields])

        emit.choose(emit.load(record, 0, I64), {int(k): caller(function) for k, function in functions.items()})
        emit.barrier()

    emit.loop(0, count, 1, one)
    emit.finish()
