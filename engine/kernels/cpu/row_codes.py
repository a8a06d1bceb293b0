"""Rows of float32 as whole numbers of 16 bits with a scale for each piece: what products of whole numbers read.

A piece's codes, as a vector, are no longer than LONGEST. So are a column's in the weights: then no sum of their
products is beyond 32 bits (Cauchy and Schwarz), in whatever order it is made.
"""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine

GROUP_SIZE = 32
"""As many neighbouring inputs as in a block of the weights."""
GROUPS_A_PIECE = 6
"""The groups whose products are summed as whole numbers: a panel's codes for them fit the first cache."""
PIECE_SIZE = GROUPS_A_PIECE * GROUP_SIZE

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

CODE_BYTES, FACTOR_BYTES = 2, 4
HIGHEST_CODE = 32767
LONGEST = 46300.0
"""The length of a piece's codes before they are rounded: 46,340 squared is below 2**31, and rounding adds half a
step each to at most PIECE_SIZE of them, for weights up to one and a half steps.
"""
_SMALLEST = 1e-30
"""Where a piece's largest number is less its codes are less too, instead of infinite."""


def num_pieces(num_groups: int) -> int:
    """Pieces of so many groups; the last may be shorter."""
    return -(-num_groups // GROUPS_A_PIECE)


def emit_row_codes(module: ir.Module, machine: Machine) -> Value:
    """`row_codes(x, groups, out)`: out is int16 (groups, 32) in PAIR_ORDER, then float32 (pieces): scales.

    A number is code * scale, off by at most scale / 2. A piece that holds a NaN or an infinity has such a scale,
    so that nothing that is made of it is a number.
    """
    known = module.globals.get("row_codes")
    if known is not None:
        return known
    emit = Emitter(module, "row_codes", [POINTER, I64, POINTER], machine.num_lanes)
    emit.function.linkage = "internal"
    emit.function.attributes.add("noinline")
    x, num_groups, out = emit.arguments
    factors = emit.at(out, emit.mul(num_groups, GROUP_SIZE * CODE_BYTES))

    def one_piece(first: Value, _: list[Value]) -> None:
        size = emit.minimum(emit.build.sub(num_groups, first), GROUPS_A_PIECE)
        source = emit.at(x, emit.mul(first, 4 * GROUP_SIZE))
        target = emit.at(out, emit.mul(first, GROUP_SIZE * CODE_BYTES))
        factor = emit.mul(emit.build.sdiv(first, emit.number(GROUPS_A_PIECE)), FACTOR_BYTES)
        _emit_piece(_Piece(emit, source, size, target), emit.at(factors, factor))

    emit.loop(0, num_groups, GROUPS_A_PIECE, one_piece)
    emit.finish()
    return emit.function


class _Piece:
    def __init__(self, emit: Emitter, source: Value, num_groups: Value, target: Value) -> None:
        self.emit, self.source, self.target = emit, source, target
        self.num_groups = num_groups
        self.num_bytes = emit.mul(num_groups, 4 * GROUP_SIZE)

    def vector(self, place: Value) -> Value:
        return self.emit.load(self.source, place, self.emit.vector)


def _emit_piece(piece: _Piece, factor: Value) -> None:
    """As many steps to a number as its largest and its length allow."""
    emit, build = piece.emit, piece.emit.build
    largest = _largest_magnitude(piece)
    inverse = build.fdiv(ir.Constant(F32, 1.0), largest)
    length = emit.root(_squares(piece, emit.splat(inverse)))
    steps = emit.smaller(ir.Constant(F32, HIGHEST_CODE - 1.0), build.fdiv(ir.Constant(F32, LONGEST), length))
    emit.store(build.fdiv(largest, steps), factor, 0)
    _write_codes(piece, emit.splat(build.fmul(inverse, steps)))


def _largest_magnitude(piece: _Piece) -> Value:
    """As whole numbers the bits of floats without a sign are in the floats' order, with NaN above infinity."""
    emit, build = piece.emit, piece.emit.build

    def larger(first: Value, second: Value) -> Value:
        return build.select(build.icmp_signed(">", first, second), first, second)

    def one_vector(place: Value, found: list[Value]) -> list[Value]:
        bits = build.bitcast(piece.vector(place), emit.integers)
        return [larger(found[0], build.and_(bits, emit.every(0x7FFFFFFF)))]

    smallest = build.bitcast(emit.constant(_SMALLEST), emit.integers)
    found = emit.loop(0, piece.num_bytes, 4 * emit.num_lanes, one_vector, [smallest])
    return build.bitcast(emit.folded(found[0], larger), F32)


def _squares(piece: _Piece, inverse: Value) -> Value:
    """The sum of the squares of numbers none of which is beyond 1."""
    emit = piece.emit

    def one_vector(place: Value, sums: list[Value]) -> list[Value]:
        value = emit.build.fmul(piece.vector(place), inverse)
        return [emit.fma(value, value, sums[0])]

    return emit.total(emit.loop(0, piece.num_bytes, 4 * emit.num_lanes, one_vector, [emit.zeros])[0])


def _write_codes(piece: _Piece, steps: Value) -> None:
    emit = piece.emit

    def one_group(group: Value, _: list[Value]) -> None:
        begin = emit.mul(group, 4 * GROUP_SIZE)
        parts = range(0, 4 * GROUP_SIZE, 4 * emit.num_lanes)
        codes = [_rounded(emit, emit.build.fmul(piece.vector(emit.add(begin, part)), steps)) for part in parts]
        emit.store(_in_pairs(emit, codes), piece.target, emit.mul(group, GROUP_SIZE * CODE_BYTES))

    emit.loop(0, piece.num_groups, 1, one_group)


def _rounded(emit: Emitter, values: Value) -> Value:
    """The nearest whole numbers; 0 for what is none."""
    build = emit.build
    is_number = build.fcmp_ordered("ord", values, values)
    return build.fptosi(emit.rint(build.select(is_number, values, emit.zeros)), emit.integers)


def _in_pairs(emit: Emitter, codes: list[Value]) -> Value:
    """A group's codes in PAIR_ORDER, as 16 bits."""
    parts = [emit.build.trunc(code, ir.VectorType(I16, emit.num_lanes)) for code in codes]
    while len(parts) > 1:
        lanes = ir.Constant(ir.VectorType(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [emit.build.shuffle_vector(*pair, lanes) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return emit.shuffle(parts[0], PAIR_ORDER)
