"""Bitmask: writes minus infinity over the numbers of a row whose bits are 0."""

import ctypes
import math
from functools import cache

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import I64, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, Machine, this_machine

WORD_BITS = 32
GLANCE_BYTES = 8
_NUM_ARGUMENTS = 7


class Bitmask:
    """The kernel, compiled. It runs in the calling thread: a step's rows take less than waking another one."""

    def __init__(self, machine: Machine) -> None:
        self._module = CompiledModule(f"bitmask {machine}", lambda module: _emit_bitmask(module, machine))
        self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * _NUM_ARGUMENTS)(self._module.address("bitmask"))

    def apply(
        self,
        values: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        masks: npt.NDArray[np.int32],
        num_words: int,
    ) -> None:
        """Blank numbers of `values` (R, at least 32 * num_words), in place: in row `rows[i]`, by `masks[i]`.

        Bits run from the least significant of each word. Numbers after the first `num_words` words are left alone.
        """
        assert len(rows) == len(masks)
        if not len(rows):
            return
        assert rows.min() >= 0
        assert rows.max() < len(values)
        assert num_words * WORD_BITS <= values.shape[1]
        assert num_words <= masks.shape[1]
        assert values.strides[1] == masks.strides[1] == 4
        self._run(
            values.ctypes.data,
            values.strides[0],
            rows.ctypes.data,
            len(rows),
            masks.ctypes.data,
            masks.strides[0],
            4 * num_words,
        )


@cache
def compiled_bitmask() -> Bitmask | None:
    """The kernel, compiled once a process; None where this machine has no compiled kernels."""
    machine = this_machine()
    return None if machine is None else Bitmask(machine)


def _emit_bitmask(module: ir.Module, machine: Machine) -> None:
    """Define `bitmask(values, their row stride, rows, number of rows, masks, their row stride, bytes of a mask)`.

    Addresses are int64, strides in bytes. Numbers all of whose bits are 1, 64 at a glance, are not even read.
    """
    emit = Emitter(module, "bitmask", [I64] * _NUM_ARGUMENTS, machine.num_lanes)
    values, value_stride, rows, num_rows, masks, mask_stride, num_bytes = emit.arguments
    bits = ir.IntType(machine.num_lanes)
    lanes = ir.VectorType(ir.IntType(1), machine.num_lanes)
    chunk_bytes = machine.num_lanes // 8
    glanced_bytes = emit.build.and_(num_bytes, emit.number(-GLANCE_BYTES))

    def one_row(number: Value, _: list[Value]) -> None:
        row = emit.load(emit.pointer(rows), emit.mul(number, 8), I64)
        target = emit.at(emit.pointer(values), emit.mul(row, value_stride))
        mask = emit.at(emit.pointer(masks), emit.mul(number, mask_stride))

        def one_chunk(place: Value, _: list[Value]) -> None:
            kept = emit.load(mask, place, bits)
            with emit.when(emit.build.icmp_unsigned("!=", kept, ir.Constant(bits, -1))):
                offset = emit.mul(place, 8 * 4)
                before = emit.load(target, offset, emit.vector)
                chosen = emit.build.select(emit.build.bitcast(kept, lanes), before, emit.constant(-math.inf))
                emit.store(chosen, target, offset)

        def one_glance(place: Value, _: list[Value]) -> None:
            kept = emit.load(mask, place, I64)
            with emit.when(emit.build.icmp_signed("!=", kept, emit.number(-1))):
                emit.loop(place, emit.add(place, GLANCE_BYTES), chunk_bytes, one_chunk)

        emit.loop(0, glanced_bytes, GLANCE_BYTES, one_glance)
        emit.loop(glanced_bytes, num_bytes, chunk_bytes, one_chunk)

    emit.loop(0, num_rows, 1, one_row)
    emit.finish()
