"""How numbers may lie in memory; what is done with floats is done in float32."""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F16, I16, Emitter, Value

STORED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int16": 2}


def load_numbers(emit: Emitter, pointer: Value, offset: Value | int, stored: str) -> Value:
    """A vector of float32 from numbers as they are stored."""
    if stored == "float32":
        return emit.load(pointer, offset, emit.vector)
    if stored == "float16":
        return emit.build.fpext(emit.load(pointer, offset, ir.VectorType(F16, emit.num_lanes)), emit.vector)
    bits = emit.build.zext(emit.load(pointer, offset, ir.VectorType(I16, emit.num_lanes)), emit.integers)
    return emit.build.bitcast(emit.build.shl(bits, emit.every(16)), emit.vector)


def narrowed(emit: Emitter, vector: Value, stored: str) -> Value:
    """A vector of float32 as it is stored, rounded to nearest even; NaN stays NaN.

    What is out of float16's range becomes its largest number, not an infinity.
    """
    if stored == "float32":
        return vector
    if stored == "float16":
        return emit.build.fptrunc(emit.limited(vector, 65504.0), ir.VectorType(F16, emit.num_lanes))
    build, bits = emit.build, emit.build.bitcast(vector, emit.integers)
    odd = build.and_(build.lshr(bits, emit.every(16)), emit.every(1))
    rounded = build.add(build.add(bits, emit.every(0x7FFF)), odd)
    is_nan = build.fcmp_unordered("uno", vector, vector)
    chosen = build.select(is_nan, build.or_(bits, emit.every(0x400000)), rounded)
    return build.trunc(build.lshr(chosen, emit.every(16)), ir.VectorType(I16, emit.num_lanes))
