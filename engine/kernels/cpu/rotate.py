"""Rotary embedding of a step's queries and keys, and the write of its keys and values into the paged cache."""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.cache_shape import SCALE_BYTES, CacheShape
from vllm_obs.engine.kernels.cpu.emit import I1, I16, I32, I64, POINTER, VOID, Emitter, Value
from vllm_obs.engine.kernels.cpu.head_codes import bounded_codes, long_codes
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.stored_numbers import narrowed
from vllm_obs.engine.kernels.cpu.worksharing import share

ROTATE_FIELDS = 7
"""qkv, qkv's row stride, rotations, positions, cache, slots, tokens."""
_EVERY_OTHER = 0x55555555


def emit_rotate(module: ir.Module, machine: Machine, shape: CacheShape) -> None:
    """Define `rotate(record)`: queries are rotated in place, keys and values go to the tokens' slots.

    qkv: float32 (tokens, heads + 2 * kv_heads, head_dim), pairs side by side. rotations: complex64 (positions,
    head_dim / 2). positions, slots: int64 (tokens,), a slot being block * block_size + offset. Every thread of a
    parallel region calls it.
    """
    emit = Emitter(module, "rotate", [POINTER], machine.num_lanes)
    qkv, stride, rotations, positions, cache, slots, num_tokens = emit.fields(emit.arguments[0], ROTATE_FIELDS)
    head_bytes = 4 * shape.head_dim
    write_keys = _write_key_codes if shape.is_coded else _write_keys
    write_values = _write_value_codes if shape.is_coded else _write_values

    def one_token(token: Value, _: list[Value]) -> None:
        heads = emit.at(emit.pointer(qkv), emit.mul(token, stride))
        position = emit.load(emit.pointer(positions), emit.mul(token, 8), I64)
        turns = emit.at(emit.pointer(rotations), emit.mul(position, head_bytes))
        slot = emit.load(emit.pointer(slots), emit.mul(token, 8), I64)
        block, offset = (
            emit.build.sdiv(slot, emit.number(shape.block_size)),
            emit.build.srem(slot, emit.number(shape.block_size)),
        )
        target = emit.at(emit.pointer(cache), emit.mul(block, shape.block_bytes))

        def one_query(head: Value, _: list[Value]) -> None:
            place = emit.at(heads, emit.mul(head, head_bytes))
            for part in range(0, head_bytes, 4 * machine.num_lanes):
                emit.store(_turned(emit, place, turns, part), place, part)

        def one_pair(head: Value, _: list[Value]) -> None:
            keys = emit.at(heads, emit.mul(emit.add(head, shape.num_heads), head_bytes))
            values = emit.at(heads, emit.mul(emit.add(head, shape.num_heads + shape.num_kv_heads), head_bytes))
            room = emit.at(target, emit.mul(head, shape.head_bytes))
            write_keys(emit, shape, _Place(keys, turns, room, offset))
            write_values(emit, shape, _Place(values, turns, room, offset))

        emit.loop(0, shape.num_heads, 1, one_query)
        emit.loop(0, shape.num_kv_heads, 1, one_pair)

    emit.loop(*share(emit, num_tokens), 1, one_token)
    emit.finish()


class _Place:
    """One head of one token, and the room for that head in its block."""

    def __init__(self, source: Value, turns: Value, room: Value, offset: Value) -> None:
        self.source, self.turns, self.room, self.offset = source, turns, room, offset


def _turned(emit: Emitter, source: Value, turns: Value, offset: int) -> Value:
    """A vector of pairs, each multiplied by its rotation as complex numbers are."""
    lanes = range(emit.num_lanes)
    pairs = emit.load(source, offset, emit.vector)
    turn = emit.load(turns, offset, emit.vector)
    cosines = emit.shuffle(turn, [lane & ~1 for lane in lanes])
    sines = emit.shuffle(turn, [lane | 1 for lane in lanes])
    swapped = emit.shuffle(pairs, [lane ^ 1 for lane in lanes])
    signs = ir.Constant(emit.vector, [1.0 if lane & 1 else -1.0 for lane in lanes])
    return emit.fma(pairs, cosines, emit.build.fmul(emit.build.fmul(swapped, sines), signs))


def _write_keys(emit: Emitter, shape: CacheShape, place: _Place) -> None:
    """A key's numbers lie a block's length apart."""
    column = emit.at(place.room, emit.mul(place.offset, shape.number_bytes))
    for part in range(0, shape.head_dim, emit.num_lanes):
        stored = narrowed(emit, _turned(emit, place.source, place.turns, 4 * part), shape.stored)
        for lane in range(emit.num_lanes):
            number = emit.build.extract_element(stored, ir.Constant(I32, lane))
            emit.store(number, column, (part + lane) * shape.block_size * shape.number_bytes)


def _write_values(emit: Emitter, shape: CacheShape, place: _Place) -> None:
    row_bytes = shape.head_dim * shape.number_bytes
    row = emit.at(place.room, emit.add(emit.mul(place.offset, row_bytes), shape.values_offset))
    for part in range(0, shape.head_dim, emit.num_lanes):
        stored = narrowed(emit, emit.load(place.source, 4 * part, emit.vector), shape.stored)
        emit.store(stored, row, part * shape.number_bytes)


def _write_key_codes(emit: Emitter, shape: CacheShape, place: _Place) -> None:
    """A key's pairs lie a block's length apart."""
    parts = range(0, shape.head_dim, emit.num_lanes)
    codes, unit = long_codes(emit, [_turned(emit, place.source, place.turns, 4 * part) for part in parts])
    column = emit.at(place.room, emit.mul(place.offset, 4))
    for part, code in zip(parts, codes, strict=True):
        short = emit.build.trunc(code, ir.VectorType(I16, emit.num_lanes))
        pairs = emit.build.bitcast(short, ir.VectorType(I32, emit.num_lanes // 2))
        for number in range(emit.num_lanes // 2):
            pair = emit.build.extract_element(pairs, ir.Constant(I32, number))
            emit.store(pair, column, 4 * (part // 2 + number) * shape.block_size)
    emit.store(unit, column, shape.scales_offset)


def _write_value_codes(emit: Emitter, shape: CacheShape, place: _Place) -> None:
    """Every other number, and nothing between: that is another token's, which another thread may be writing."""
    build = emit.build
    codes, unit = bounded_codes(
        emit, [emit.load(place.source, 4 * part, emit.vector) for part in range(0, shape.head_dim, emit.num_lanes)]
    )
    line = emit.mul(build.ashr(place.offset, emit.number(1)), 4 * shape.head_dim)
    row = emit.at(place.room, emit.add(line, shape.values_offset))
    is_odd = build.trunc(build.and_(place.offset, emit.number(1)), I32)
    own = build.bitcast(build.shl(ir.Constant(I32, _EVERY_OTHER), is_odd), ir.VectorType(I1, 2 * emit.num_lanes))
    kind = ir.VectorType(I16, 2 * emit.num_lanes)
    store = emit.declared("llvm.masked.store.v32i16.p0", ir.FunctionType(VOID, [kind, POINTER, I32, own.type]))
    for number, code in enumerate(codes):
        twice = build.or_(build.and_(code, emit.every(0xFFFF)), build.shl(code, emit.every(16)))
        target = emit.at(row, 4 * emit.num_lanes * number)
        build.call(store, [build.bitcast(twice, kind), target, ir.Constant(I32, 1), own])
    scales = emit.at(place.room, emit.add(emit.mul(place.offset, SCALE_BYTES), shape.values_offset))
    emit.store(unit, scales, shape.scales_offset)
