"""e to the power of each lane of a vector, in two forms. Cephes' polynomial for expf."""

import math

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import I32, Emitter, Value

_LOWEST, _HIGHEST = -87.0, 88.0
_LN_2 = (0.693359375, -2.12194440e-4)
"""In two parts, so that many times the first is exact."""
_SERIES = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_AS_THE_CPU_IS_SET = 4
"""How the instruction that scales is to round."""


def exp(emit: Emitter, vector: Value) -> Value:
    """Within 2 ulp; 0 below -87, NaN for NaN."""
    build = emit.build
    low = build.fcmp_ordered("<", vector, emit.constant(_LOWEST))
    capped = emit.limited(vector, _HIGHEST)
    power = _whole_powers(emit, capped)
    is_number = build.fcmp_ordered("ord", power, power)
    exponent = build.fptosi(build.select(is_number, power, emit.zeros), emit.integers)  # of NaN it is undefined
    bits = build.shl(build.add(exponent, emit.every(127)), emit.every(23))
    value = build.fmul(_rest(emit, capped, power), build.bitcast(bits, emit.vector))
    return build.select(low, emit.zeros, value)


def exp_of_moderate(emit: Emitter, vector: Value) -> Value:
    """`exp` of lanes that are at most 80, in fewer instructions where one scales by powers of two."""
    if emit.num_lanes != 16:
        return exp(emit, vector)
    power = _whole_powers(emit, vector)
    kept = emit.build.fcmp_unordered(">=", vector, emit.constant(_LOWEST))
    mask, rounding = emit.build.bitcast(kept, ir.IntType(16)), ir.Constant(I32, _AS_THE_CPU_IS_SET)
    kinds = [emit.vector, emit.vector, emit.vector, mask.type, I32]
    function = emit.declared("llvm.x86.avx512.mask.scalef.ps.512", ir.FunctionType(emit.vector, kinds))
    return emit.build.call(function, [_rest(emit, vector, power), power, emit.zeros, mask, rounding])


def _whole_powers(emit: Emitter, vector: Value) -> Value:
    """Which power of two comes nearest."""
    return emit.rint(emit.build.fmul(vector, emit.constant(math.log2(math.e))))


def _rest(emit: Emitter, vector: Value, power: Value) -> Value:
    """e to the power of what is left of each lane without so many ln 2."""
    rest = vector
    for part in _LN_2:
        rest = emit.fma(power, emit.constant(-part), rest)
    series = emit.constant(_SERIES[0])
    for factor in _SERIES[1:]:
        series = emit.fma(series, rest, emit.constant(factor))
    return emit.build.fadd(emit.fma(series, emit.build.fmul(rest, rest), rest), emit.constant(1.0))
