"""e to the power of each lane of a vector, by Cephes' polynomial for expf, and 2, less exactly, by one of ours."""

import math

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import I32, Emitter, Value

_LOWEST, _HIGHEST = -87.0, 88.0
_LN_2 = (0.693359375, -2.12194440e-4)
"""In two parts, so that many times the first is exact."""
_SERIES = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_HALF_SERIES = (1.342679467e-2, 5.224229697e-2, 2.412802878e-1, 6.930448344e-1, 1.0)
"""2 to the power of what is between 0 and 1, within 2.9e-6; fitted for the least relative error, exact at 0."""
_FRACTION_ABOVE = 9
"""What is left above the whole number below, without exceptions."""
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


def exp2_of_codes(emit: Emitter, vector: Value) -> Value:
    """2 to the power of each lane of a vector of 16, within 3e-6; 0 for minus infinity, NaN for NaN."""
    mask, rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(I32, _AS_THE_CPU_IS_SET)
    wanted = ir.Constant(I32, _FRACTION_ABOVE)
    kinds = [emit.vector, I32, emit.vector, mask.type, I32]
    reduce = emit.declared("llvm.x86.avx512.mask.reduce.ps.512", ir.FunctionType(emit.vector, kinds))
    rest = emit.build.call(reduce, [vector, wanted, emit.zeros, mask, rounding])
    series = emit.constant(_HALF_SERIES[0])
    for factor in _HALF_SERIES[1:]:
        series = emit.fma(series, rest, emit.constant(factor))
    kinds = [emit.vector, emit.vector, emit.vector, mask.type, I32]
    scale = emit.declared("llvm.x86.avx512.mask.scalef.ps.512", ir.FunctionType(emit.vector, kinds))
    return emit.build.call(scale, [series, vector, emit.zeros, mask, rounding])


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
