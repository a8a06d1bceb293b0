"""One head of a query, key or value as whole numbers of 16 bits, with what one step of them is worth.

No sum of their products is beyond 32 bits. A query's codes and a key's, as vectors, are no longer than LONGEST, so
by Cauchy and Schwarz no sum of their products reaches 2**31, in whatever order it is made. Of values and shares
MOST_KEYS products are summed, each of at most HIGHEST_VALUE * HIGHEST_SHARE: 2**31 less half a million.
"""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I16, I32, Emitter, Value
from vllm_obs.engine.kernels.cpu.row_codes import HIGHEST_CODE, LONGEST

HIGHEST_VALUE = HIGHEST_SHARE = 8191.0
MOST_KEYS = 32
SMALLEST = 1e-30
"""Where the largest number is less codes are less too, instead of infinite."""
_TO_NEAREST = 8
"""How the instruction that makes whole numbers is to round, whatever the CPU is set to."""


def long_codes(emit: Emitter, vectors: list[Value]) -> tuple[list[Value], Value]:
    """Codes (int32 vectors) no longer than LONGEST, and the float that a step is worth.

    Of a head that holds a NaN or an infinity nothing that is made is a number.
    """
    build, squares = emit.build, emit.zeros
    largest = _largest_magnitude(emit, vectors)
    inverse = emit.splat(build.fdiv(ir.Constant(F32, 1.0), largest))
    ratios = [build.fmul(vector, inverse) for vector in vectors]
    for ratio in ratios:
        squares = emit.fma(ratio, ratio, squares)
    length = emit.root(emit.total(squares))
    steps = emit.smaller(ir.Constant(F32, HIGHEST_CODE - 1.0), build.fdiv(ir.Constant(F32, LONGEST), length))
    factor = emit.splat(steps)
    return [nearest(emit, build.fmul(ratio, factor)) for ratio in ratios], build.fdiv(largest, steps)


def bounded_codes(emit: Emitter, vectors: list[Value]) -> tuple[list[Value], Value]:
    """Codes none of which is beyond HIGHEST_VALUE, likewise."""
    build, highest = emit.build, ir.Constant(F32, HIGHEST_VALUE)
    largest = _largest_magnitude(emit, vectors)
    factor = emit.splat(build.fdiv(highest, largest))
    return [nearest(emit, build.fmul(vector, factor)) for vector in vectors], build.fdiv(largest, highest)


def nearest(emit: Emitter, values: Value) -> Value:
    """The nearest whole numbers; where there is none, one whose lower 16 bits are 0."""
    mask, rounding = ir.IntType(16), ir.Constant(I32, _TO_NEAREST)
    kinds = [emit.vector, emit.integers, mask, I32]
    function = emit.declared("llvm.x86.avx512.mask.cvtps2dq.512", ir.FunctionType(emit.integers, kinds))
    return emit.build.call(function, [values, emit.every(0), ir.Constant(mask, -1), rounding])


def store_codes(emit: Emitter, codes: list[Value], target: Value) -> None:
    """Vectors of codes side by side, as 16 bits."""
    kind = ir.VectorType(I16, emit.num_lanes)
    for number, code in enumerate(codes):
        emit.store(emit.build.trunc(code, kind), target, 2 * emit.num_lanes * number)


def larger_magnitude(emit: Emitter, first: Value, second: Value) -> Value:
    """The larger of two floats without sign, given as bits, with NaN above infinity."""
    return emit.build.select(emit.build.icmp_unsigned(">", first, second), first, second)


def _largest_magnitude(emit: Emitter, vectors: list[Value]) -> Value:
    build = emit.build
    found = build.bitcast(emit.constant(SMALLEST), emit.integers)
    for vector in vectors:
        bits = build.and_(build.bitcast(vector, emit.integers), emit.every(0x7FFFFFFF))
        found = larger_magnitude(emit, found, bits)
    return build.bitcast(emit.folded(found, lambda one, other: larger_magnitude(emit, one, other)), F32)
