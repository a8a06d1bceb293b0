"""Root-mean-square norm of rows, or of parts of rows such as heads."""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.worksharing import share

NORM_FIELDS = 10
"""x, x's row stride, weight, out, out's row stride, rows, size, parts of a row, part stride, eps (a float32)."""


def emit_norm(module: ir.Module, machine: Machine) -> None:
    """Define `norm(record)`: out = x / sqrt(mean(x²) + eps) * weight; `out` may be `x`.

    `size` is a multiple of the vector's length. Every thread of a parallel region calls it.
    """
    emit = Emitter(module, "norm", [POINTER], machine.num_lanes)
    record = emit.arguments[0]
    x, x_stride, weight, out, out_stride, num_rows, size, num_parts, part_stride = emit.fields(record, 9)
    eps = emit.load(record, 8 * 9, F32)
    num_bytes, vector_bytes = emit.mul(size, 4), 4 * machine.num_lanes
    count = emit.build.sitofp(size, F32)

    def one_part(number: Value, _: list[Value]) -> None:
        row, part = emit.build.sdiv(number, num_parts), emit.build.srem(number, num_parts)
        offset = emit.mul(part, part_stride)
        source = emit.at(emit.pointer(x), emit.add(emit.mul(row, x_stride), offset))
        target = emit.at(emit.pointer(out), emit.add(emit.mul(row, out_stride), offset))

        def add_squares(place: Value, sums: list[Value]) -> list[Value]:
            values = emit.load(source, place, emit.vector)
            return [emit.fma(values, values, sums[0])]

        squares = emit.total(emit.loop(0, num_bytes, vector_bytes, add_squares, [emit.zeros])[0])
        mean = emit.build.fadd(emit.build.fdiv(squares, count), eps)
        scale = emit.splat(emit.build.fdiv(ir.Constant(F32, 1.0), emit.root(mean)))

        def scaled(place: Value, _: list[Value]) -> None:
            values = emit.build.fmul(emit.load(source, place, emit.vector), scale)
            factors = emit.load(emit.pointer(weight), place, emit.vector)
            emit.store(emit.build.fmul(values, factors), target, place)

        emit.loop(0, num_bytes, vector_bytes, scaled)

    emit.loop(*share(emit, emit.mul(num_rows, num_parts)), 1, one_part)
    emit.finish()
