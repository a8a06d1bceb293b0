"""Rows of float32 as whole numbers of 16 bits with a scale for each group: what products with blocks read."""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine

GROUP_SIZE = 32
"""Neighbouring inputs that share a scale: as many as in a block of the weights."""

PAIR_ORDER = [
    4 * word + 16 * nibble + byte + 2 * half
    for word in range(GROUP_SIZE // 8)
    for byte in (0, 1)
    for nibble in (0, 1)
    for half in (0, 1)
]
"""Which of a group's inputs stands at each place: the order in which a shift and a mask find two 4-bit codes at a
time in the 32-bit words of a GGUF block, whose bytes hold neighbours, in upper nibbles inputs 16 further on.
"""

CODE_BYTES, FACTOR_BYTES = 2, 8
_HIGHEST_CODE = 32767.0
_SMALLEST = 1e-30
"""Where a group's largest number is less its codes are less too, instead of infinite."""


def emit_row_codes(module: ir.Module, machine: Machine) -> Value:
    """`row_codes(x, groups, out)`: out is int16 (groups, 32) in PAIR_ORDER, then float32 (groups, 2): scale, sum.

    A number is code * scale, off by at most scale / 2; the sum is that of the codes. A group that holds a NaN or
    an infinity has such a scale, so that nothing that is made of it is a number.
    """
    known = module.globals.get("row_codes")
    if known is not None:
        return known
    emit = Emitter(module, "row_codes", [POINTER, I64, POINTER], machine.num_lanes)
    emit.function.linkage = "internal"
    emit.function.attributes.add("noinline")
    x, num_groups, out = emit.arguments
    factors = emit.at(out, emit.mul(num_groups, GROUP_SIZE * CODE_BYTES))

    def one_group(group: Value, _: list[Value]) -> None:
        begin = emit.mul(group, 4 * GROUP_SIZE)
        parts = range(0, 4 * GROUP_SIZE, 4 * machine.num_lanes)
        values = [emit.load(emit.at(x, begin), part, emit.vector) for part in parts]
        largest = _largest_magnitude(emit, values)
        inverse = emit.splat(emit.build.fdiv(ir.Constant(F32, _HIGHEST_CODE), largest))
        codes = [_rounded(emit, emit.build.fmul(value, inverse)) for value in values]
        place = emit.mul(group, FACTOR_BYTES)
        scale = emit.build.fmul(largest, ir.Constant(F32, 1 / _HIGHEST_CODE))
        emit.store(scale, factors, place)
        emit.store(emit.build.sitofp(_total(emit, codes), F32), factors, emit.add(place, 4))
        emit.store(_in_pairs(emit, codes), out, emit.mul(group, GROUP_SIZE * CODE_BYTES))

    emit.loop(0, num_groups, 1, one_group)
    emit.finish()
    return emit.function


def _largest_magnitude(emit: Emitter, values: list[Value]) -> Value:
    """As whole numbers the bits of floats without a sign are in the floats' order, with NaN above infinity."""
    build = emit.build

    def larger(first: Value, second: Value) -> Value:
        return build.select(build.icmp_signed(">", first, second), first, second)

    magnitudes = [build.and_(build.bitcast(value, emit.integers), emit.every(0x7FFFFFFF)) for value in values]
    largest = magnitudes[0]
    for other in magnitudes[1:]:
        largest = larger(largest, other)
    smallest = build.bitcast(emit.constant(_SMALLEST), emit.integers)
    return build.bitcast(emit.folded(larger(largest, smallest), larger), F32)


def _rounded(emit: Emitter, values: Value) -> Value:
    """The nearest whole numbers; 0 for what is none."""
    build = emit.build
    is_number = build.fcmp_ordered("ord", values, values)
    return build.fptosi(emit.rint(build.select(is_number, values, emit.zeros)), emit.integers)


def _total(emit: Emitter, codes: list[Value]) -> Value:
    total = codes[0]
    for other in codes[1:]:
        total = emit.build.add(total, other)
    return emit.folded(total, emit.build.add)


def _in_pairs(emit: Emitter, codes: list[Value]) -> Value:
    """A group's codes in PAIR_ORDER, as 16 bits."""
    parts = [emit.build.trunc(code, ir.VectorType(I16, emit.num_lanes)) for code in codes]
    while len(parts) > 1:
        lanes = ir.Constant(ir.VectorType(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [emit.build.shuffle_vector(*pair, lanes) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return emit.shuffle(parts[0], PAIR_ORDER)
