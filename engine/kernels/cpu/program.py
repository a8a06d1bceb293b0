"""A list of kernel calls that torch's threads run one after another without coming back to Python."""

from enum import IntEnum
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from vllm_obs.engine.kernels.cpu.attention import emit_attention
from vllm_obs.engine.kernels.cpu.block_linear import emit_block_linear
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, Machine, run_in_parallel
from vllm_obs.engine.kernels.cpu.linear import emit_linear
from vllm_obs.engine.kernels.cpu.norm import emit_norm
from vllm_obs.engine.kernels.cpu.rotate import emit_rotate
from vllm_obs.engine.kernels.cpu.worksharing import barrier, thread

RECORD_FIELDS = 16
"""int64 fields of a call: the kernel's number, then what the kernel itself takes, and last what it is called."""
ASKED_FIELD = 13
"""What a product asks for, and behind it the cache: the last fields of its kernel."""
LABEL_FIELD = RECORD_FIELDS - 1
"""Read by nobody but a watch."""

Records = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]

_CLOCK_MONOTONIC = 1
_TIME_FIELDS = 2


BLOCK_FORMS = ("q4", "q8", "int16")
"""Forms of matrices that have a kernel of their own each."""


class Kernel(IntEnum):
    """The number of each kernel in a program."""

    NORM = 0
    LINEAR = 1
    ROTATE = 2
    ATTEND = 3
    LINEAR_Q4 = 4
    LINEAR_Q8 = 5
    LINEAR_INT16 = 6


def record(kernel: Kernel, fields: dict[int, int]) -> Records:
    """One call's record; field 0 is the kernel, the others count from 1."""
    call = np.zeros(RECORD_FIELDS, np.int64)
    call[0] = kernel
    for number, value in fields.items():
        call[number] = value
    return call


class KernelWatch(Protocol):
    """Is told how long each call of each program took, while it is set."""

    def program_ran(self, records: Records, times: Times) -> None:
        """These calls ran; times: int64 (calls + 1, 2), seconds and ns (monotonic) before, between and after."""


class Kernels:
    """The kernels for one model's shapes, compiled; `run` runs programs of them.

    `forms` are what its matrices are held in: of float32, float16 and bfloat16 at most one, and any BLOCK_FORMS.
    With a `watch` the same kernels run in the same order, and one thread reads the clock between them.
    """

    watch: KernelWatch | None = None

    def __init__(self, machine: Machine, shape: CacheShape, forms: tuple[str, ...]) -> None:
        def emit(module: ir.Module) -> None:
            emit_norm(module, machine)
            for form in forms:
                if form in BLOCK_FORMS:
                    emit_block_linear(module, machine, shape, form)
                else:
                    emit_linear(module, machine, form)
            emit_rotate(module, machine, shape)
            emit_attention(module, machine, shape)
            _emit_program(module, machine, is_watched=False)
            _emit_program(module, machine, is_watched=True)

        self.machine = machine
        self.shape = shape
        self.forms = forms
        self._module = CompiledModule(f"program {machine} {shape} {forms}", emit)
        self._program = self._module.address("program")
        self._watched_program = self._module.address("watched_program")

    def run(self, records: Records, num_threads: int) -> None:
        """Run calls (int64 (calls, RECORD_FIELDS)) in order, each after the one before has ended."""
        assert records.shape[1] == RECORD_FIELDS
        assert records.flags.c_contiguous
        if not len(records):
            return
        if self.watch is not None:
            self._run_watched(records, num_threads, self.watch)
            return
        head = np.array([records.ctypes.data, len(records)], np.int64)
        run_in_parallel(self._program, head.ctypes.data, num_threads)

    def _run_watched(self, records: Records, num_threads: int, watch: KernelWatch) -> None:
        times = np.empty((len(records) + 1, _TIME_FIELDS), np.int64)
        head = np.array([records.ctypes.data, len(records), times.ctypes.data], np.int64)
        run_in_parallel(self._watched_program, head.ctypes.data, num_threads)
        watch.program_ran(records, times)


@cache
def compiled_kernels(machine: Machine, shape: CacheShape, forms: tuple[str, ...]) -> Kernels:
    """The kernels for these shapes, compiled once a process."""
    return Kernels(machine, shape, forms)


def _emit_program(module, machine: Machine, is_watched: bool) -> None:  # type: ignore[no-untyped-def]
    emit = Emitter(module, "watched_program" if is_watched else "program", [POINTER], machine.num_lanes)
    records, count, *times = emit.fields(emit.arguments[0], 3 if is_watched else 2)

    def note_time(number: Value) -> None:
        for address in times:
            with emit.when(emit.build.icmp_signed("==", thread(emit), emit.number(0))):
                clock = emit.declared("clock_gettime", ir.FunctionType(I32, [I32, POINTER]))
                place = emit.at(emit.pointer(address), emit.mul(number, 8 * _TIME_FIELDS))
                emit.build.call(clock, [ir.Constant(I32, _CLOCK_MONOTONIC), place])

    def one(number: Value, _: list[Value]) -> None:
        record = emit.at(emit.pointer(records), emit.mul(number, 8 * RECORD_FIELDS))
        fields = emit.at(record, 8)
        known = {kernel: module.globals.get(kernel.name.lower()) for kernel in Kernel}
        functions = {kernel: function for kernel, function in known.items() if function is not None}

        def caller(function: Value):  # type: ignore[no-untyped-def]
            return lambda: emit.build.call(function, [fields])

        emit.choose(emit.load(record, 0, I64), {int(k): caller(function) for k, function in functions.items()})
        barrier(emit)
        note_time(emit.add(number, 1))

    note_time(emit.number(0))
    emit.loop(0, count, 1, one)
    emit.finish()
