"""Draw: a token for each row of logits, by temperature and a uniform number, in one pass and a glance."""

import ctypes
import math
from functools import cache

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.exponential import exp_of_moderate
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, Machine, this_machine

CHUNK = 128
"""Tokens whose weights are summed together, so that only one chunk of a row is looked at token by token."""
WORD_BITS = 32
_F64 = ir.DoubleType()
_CHUNK_BYTES, _MASK_BYTES = 4 * CHUNK, CHUNK // 8


class Draw:
    """The kernel, compiled. It runs in the calling thread, and changes no logits."""

    def __init__(self, machine: Machine) -> None:
        self._module = CompiledModule(f"draw {machine}", lambda module: _emit_draw(module, machine))
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._module.address("draw"))

    def draw(
        self,
        logits: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        temperatures: npt.NDArray[np.float32],
        uniforms: npt.NDArray[np.float64],
        best: npt.NDArray[np.int64],
        masks: dict[int, npt.NDArray[np.int32]],
    ) -> npt.NDArray[np.int64]:
        """int64 (len(rows),): the first token whose cumulative weight, exp(logit / temperature), in the order of
        ids, exceeds its uniform number times the row's total; -1 where no token has a weight.

        logits: (R, vocab). temperatures, uniforms in [0, 1) and best, the tokens of the highest logits, are
        parallel to rows. masks: by place in rows, int32 words of what may be drawn, bits from the least
        significant; beyond their width no token may. A row's answer depends on that row alone.
        """
        vocab_size = logits.shape[1]
        every = np.full(-(-vocab_size // WORD_BITS), -1, np.int32)
        addresses = np.full(len(rows), every.ctypes.data, np.int64)
        sizes = np.full(len(rows), vocab_size, np.int64)
        for place, words in masks.items():
            assert words.flags.c_contiguous
            addresses[place], sizes[place] = words.ctypes.data, min(vocab_size, WORD_BITS * len(words))
        assert not len(rows) or (rows.min() >= 0 and rows.max() < len(logits))
        assert len(rows) == len(temperatures) == len(uniforms) == len(best)
        assert logits.strides[1] == 4
        assert not len(best) or (best.min() >= 0 and best.max() < vocab_size)
        maxima, scales = logits[rows, best], np.reciprocal(temperatures)
        upto, tokens = np.empty(-(-vocab_size // CHUNK), np.float64), np.empty(len(rows), np.int64)
        columns = (rows, addresses, sizes, np.ascontiguousarray(best), maxima, scales, uniforms, upto, tokens)
        assert all(column.flags.c_contiguous for column in columns)
        fields = [logits.ctypes.data, logits.strides[0], len(rows), *(each.ctypes.data for each in columns)]
        record = np.array(fields, np.int64)
        self._run(record.ctypes.data)
        return tokens


@cache
def compiled_draw() -> Draw | None:
    """The kernel, compiled once a process; None where this machine has no compiled kernels."""
    machine = this_machine()
    return None if machine is None else Draw(machine)


class _Row:
    """Writes what is done to one row. Weights are float32, their sums float64 from chunk to chunk."""

    def __init__(self, emit: Emitter, source: Value, mask: Value, size: Value) -> None:
        self.emit = emit
        self._source, self._mask = source, mask
        self._bits = ir.IntType(emit.num_lanes)
        self._lanes = ir.VectorType(ir.IntType(1), emit.num_lanes)
        self._rest = emit.scratch(CHUNK), emit.scratch(_MASK_BYTES // 4)
        self.num_whole = emit.build.sdiv(size, emit.number(CHUNK))
        self._num_rest = emit.build.srem(size, emit.number(CHUNK))
        self._copy_rest()

    def _copy_rest(self) -> None:
        """Numbers after the last whole chunk make one too: filled up with what nobody draws."""
        emit, (numbers, mask) = self.emit, self._rest
        for place in range(0, CHUNK, emit.num_lanes):
            emit.store(emit.constant(-math.inf), numbers, 4 * place)
        emit.store(ir.Constant(ir.IntType(CHUNK), 0), mask, 0)
        begin = emit.mul(self.num_whole, _CHUNK_BYTES)
        mask_begin = emit.mul(self.num_whole, _MASK_BYTES)

        def number(place: Value, _: list[Value]) -> None:
            offset = emit.mul(place, 4)
            emit.store(emit.load(self._source, emit.add(begin, offset), F32), numbers, offset)

        def word(place: Value, _: list[Value]) -> None:
            offset = emit.mul(place, 4)
            emit.store(emit.load(self._mask, emit.add(mask_begin, offset), F32), mask, offset)

        num_words = emit.build.sdiv(emit.add(self._num_rest, WORD_BITS - 1), emit.number(WORD_BITS))
        emit.loop(0, self._num_rest, 1, number)
        emit.loop(0, num_words, 1, word)

    def chunk(self, number: Value) -> tuple[Value, Value]:
        """Where a chunk's numbers and its bits are."""
        emit, build = self.emit, self.emit.build
        is_whole = build.icmp_signed("<", number, self.num_whole)
        numbers = emit.at(self._source, emit.mul(number, _CHUNK_BYTES))
        bits = emit.at(self._mask, emit.mul(number, _MASK_BYTES))
        rest, rest_bits = (emit.at(each, 0) for each in self._rest)
        return build.select(is_whole, numbers, rest), build.select(is_whole, bits, rest_bits)

    @property
    def num_chunks(self) -> Value:
        """The rest included, which may be empty."""
        return self.emit.build.select(
            self.emit.build.icmp_signed(">", self._num_rest, self.emit.number(0)),
            self.emit.add(self.num_whole, 1),
            self.num_whole,
        )

    def is_any(self, bits: Value) -> Value:
        """Whether a chunk has a token that may be drawn."""
        kind = ir.IntType(CHUNK)
        return self.emit.build.icmp_unsigned("!=", self.emit.load(bits, 0, kind), ir.Constant(kind, 0))

    def kept(self, bits: Value, place: int, vector: Value, other: Value) -> Value:
        """The lanes that may be drawn, the other's where not."""
        lanes = self.emit.build.bitcast(self.emit.load(bits, place // 8, self._bits), self._lanes)
        return self.emit.build.select(lanes, vector, other)

    def largest(self) -> Value:
        """The highest number that may be drawn."""
        emit, low = self.emit, self.emit.constant(-math.inf)

        def one(number: Value, carried: list[Value]) -> list[Value]:
            numbers, bits = self.chunk(number)

            def looked() -> list[Value]:
                found = carried[0]
                for place in range(0, CHUNK, emit.num_lanes):
                    vector = self.kept(bits, place, emit.load(numbers, 4 * place, emit.vector), low)
                    found = emit.max(vector, found)
                return [found]

            return emit.changed_where(self.is_any(bits), looked, carried)

        return emit.largest(emit.loop(0, self.num_chunks, 1, one, [low])[0])

    def weights(self, number: Value, highest: Value, scale: Value) -> list[Value]:
        """Vectors of a chunk: e to the power of what each is below the highest, scaled; 0 for what may not be."""
        emit, build = self.emit, self.emit.build
        numbers, bits = self.chunk(number)
        found = []
        for place in range(0, CHUNK, emit.num_lanes):
            below = build.fsub(emit.load(numbers, 4 * place, emit.vector), highest)
            vector = exp_of_moderate(emit, build.fmul(below, scale))
            found.append(self.kept(bits, place, vector, emit.zeros))
        return found


def _emit_draw(module: ir.Module, machine: Machine) -> None:
    """Define `draw(record)`, the fields in `Draw.draw`'s order, int64 each."""
    emit = Emitter(module, "draw", [POINTER], machine.num_lanes)
    values, stride, num_rows, *columns = emit.fields(emit.arguments[0], 12)
    pointers = [emit.pointer(column) for column in columns]
    rows, masks, sizes, best, maxima, scales, uniforms, upto, tokens = pointers
    build = emit.build
    weights = emit.scratch(CHUNK)

    def one_row(number: Value, _: list[Value]) -> None:
        wide, narrow = emit.mul(number, 8), emit.mul(number, 4)
        source = emit.at(emit.pointer(values), emit.mul(emit.load(rows, wide, I64), stride))
        mask = emit.pointer(emit.load(masks, wide, I64))
        size = emit.load(sizes, wide, I64)
        row = _Row(emit, source, mask, size)
        highest = _highest(row, mask, size, emit.load(best, wide, I64), emit.load(maxima, narrow, F32))
        scale = emit.splat(emit.load(scales, narrow, F32))
        total = _sum_chunks(row, upto, emit.splat(highest), scale)
        target = build.fmul(emit.load(uniforms, wide, _F64), total)
        chosen = _first_above(emit, upto, row.num_chunks, total, target)
        is_first = build.icmp_signed("==", chosen, emit.number(0))
        place = emit.maximum(emit.add(chosen, -1), 0)
        before = build.select(is_first, ir.Constant(_F64, 0.0), emit.load(upto, emit.mul(place, 8), _F64))
        for index, vector in enumerate(row.weights(chosen, emit.splat(highest), scale)):
            emit.store(vector, weights, 4 * index * emit.num_lanes)
        inner = _first_within(emit, weights, build.fsub(target, before))
        token = emit.add(emit.mul(chosen, CHUNK), inner)
        is_any = build.fcmp_ordered(">", total, ir.Constant(_F64, 0.0))
        emit.store(build.select(is_any, token, emit.number(-1)), tokens, wide)

    emit.loop(0, num_rows, 1, one_row)
    emit.finish()


def _highest(row: _Row, mask: Value, size: Value, best: Value, maximum: Value) -> Value:
    """The best token's number, if it may be drawn; else the row is gone through for the best of those that may."""
    emit, build = row.emit, row.emit.build
    inside = build.icmp_signed("<", best, size)
    byte = build.select(inside, build.ashr(best, emit.number(3)), emit.number(0))
    bits = build.zext(emit.load(mask, byte, ir.IntType(8)), I64)
    bit = build.and_(build.lshr(bits, build.and_(best, emit.number(7))), emit.number(1))
    is_other = build.or_(build.not_(inside), build.icmp_signed("==", bit, emit.number(0)))
    return emit.changed_where(is_other, lambda: [row.largest()], [maximum])[0]


def _sum_chunks(row: _Row, upto: Value, highest: Value, scale: Value) -> Value:
    """Write the sums up to the end of each chunk, float64; the last of them."""
    emit, build = row.emit, row.emit.build

    def one(number: Value, carried: list[Value]) -> list[Value]:
        _, bits = row.chunk(number)

        def summed() -> list[Value]:
            vectors = row.weights(number, highest, scale)
            while len(vectors) > 1:
                vectors = [build.fadd(*vectors[place : place + 2]) for place in range(0, len(vectors), 2)]
            return [build.fadd(carried[0], build.fpext(emit.total(vectors[0]), _F64))]

        sums = emit.changed_where(row.is_any(bits), summed, carried)
        emit.store(sums[0], upto, emit.mul(number, 8))
        return sums

    total: Value = emit.loop(0, row.num_chunks, 1, one, [ir.Constant(_F64, 0.0)])[0]
    return total


def _first_above(emit: Emitter, upto: Value, count: Value, total: Value, target: Value) -> Value:
    """The first of these sums above the target; at most the last that added anything, whatever rounding does."""
    build, none = emit.build, emit.number(0)

    def one(number: Value, carried: list[Value]) -> list[Value]:
        value = emit.load(upto, emit.mul(number, 8), _F64)
        is_before = build.fcmp_ordered("<=", value, target)
        is_short = build.fcmp_ordered("<", value, total)
        found, last = carried
        return [
            build.add(found, build.zext(is_before, I64)),
            build.add(last, build.zext(is_short, I64)),
        ]

    return emit.minimum(*emit.loop(0, count, 1, one, [none, none]))


def _first_within(emit: Emitter, weights: Value, target: Value) -> Value:
    """The first token of a chunk up to which its weights' sum is above the target; at most the last with one."""
    build, none = emit.build, emit.number(0)

    def one(number: Value, carried: list[Value]) -> list[Value]:
        before, found, last = carried
        weight = emit.load(weights, emit.mul(number, 4), F32)
        value = build.fadd(before, build.fpext(weight, _F64))
        is_before = build.fcmp_ordered("<=", value, target)
        has_weight = build.fcmp_ordered(">", weight, ir.Constant(F32, 0.0))
        return [
            value,
            build.add(found, build.zext(is_before, I64)),
            build.select(has_weight, number, last),
        ]

    start = [ir.Constant(_F64, 0.0), none, none]
    _, found, last = emit.loop(0, CHUNK, 1, one, start)
    return emit.minimum(found, last)
