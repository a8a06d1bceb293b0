"""The inner loop of attention over keys and values that are whole numbers, with a scale for each key and value.

Scores are summed by pairs of features, values by pairs of keys: exactly, and scaled once for a portion of keys.
"""

import math

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.attention_keys import KEY_VECTORS, Keys, KeyTaker
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import F32, I16, I32, Emitter, Value
from vllm_obs.engine.kernels.cpu.exponential import exp2_of_codes
from vllm_obs.engine.kernels.cpu.head_codes import (
    HIGHEST_SHARE,
    MOST_KEYS,
    SMALLEST,
    larger_magnitude,
    long_codes,
    nearest,
    store_codes,
)
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.pair_products import pair_adder

_PAIRS_A_TURN = 4
_LINE_BYTES = 64
_PARTS, _EARLY_PARTS = 8, 3
"""Of the values that are read next so many parts are asked for while scores become shares, as many while shares
become whole numbers, and the rest while values are added: memory would have nothing to do.
"""
_UNIT_ROOM = 64


def query_code_bytes(shape: CacheShape) -> int:
    """Room for the codes of one head of a query and what a step of them is worth."""
    return 2 * shape.head_dim + _UNIT_ROOM


def write_query_codes(emit: Emitter, shape: CacheShape, query: Value, room: Value) -> None:
    """The heads of a query that share a key head, as codes whose unit includes what scores are scaled by."""
    scale = ir.Constant(F32, math.log2(math.e) * shape.head_dim**-0.5)
    for head in range(shape.num_sharing):
        begin = 4 * shape.head_dim * head
        parts = range(begin, begin + 4 * shape.head_dim, 4 * emit.num_lanes)
        codes, unit = long_codes(emit, [emit.load(query, part, emit.vector) for part in parts])
        target = emit.at(room, head * query_code_bytes(shape))
        store_codes(emit, codes, target)
        emit.store(emit.build.fmul(unit, scale), target, 2 * shape.head_dim)


class CodeTaker(KeyTaker):
    """`take_in_n` whose qkv are the queries' codes, one query after the other."""

    def _query(self, queries: Value, number: int, offset: Value) -> Value:
        return self.emit.at(queries, number * self.shape.num_sharing * query_code_bytes(self.shape))

    def _head_bytes(self) -> int:
        return query_code_bytes(self.shape)

    def _power(self, scores: Value) -> Value:
        """Scores are powers of two: that is in the queries' units."""
        return exp2_of_codes(self.emit, scores)

    def _prepare(self, machine: Machine) -> None:
        emit = self.emit
        assert KEY_VECTORS * emit.num_lanes <= MOST_KEYS, "sums over so many keys might overflow"
        assert len(self.rows) <= emit.num_lanes, "rows' scales are one vector"
        self.add_pairs = pair_adder(machine)
        self.codes_kind = ir.VectorType(I16, 2 * emit.num_lanes)
        self.share_codes = emit.scratch(len(self.rows) * KEY_VECTORS * emit.num_lanes // 2)
        self.share_steps, self.share_units = emit.scratch(emit.num_lanes), emit.scratch(emit.num_lanes)

    def _scores(self, keys: Keys) -> list[list[Value]]:
        """A row's scores, each vector by one chain of sums of two products."""
        emit, shape = self.emit, self.shape
        pair_bytes = 4 * shape.block_size
        pointers = [
            emit.at(block, emit.mul(offset, 4)) for block, offset in zip(keys.blocks, keys.offsets, strict=True)
        ]

        def turn(first: Value, sums: list[Value]) -> list[Value]:
            for block in keys.next_blocks:
                self._ask_for(block, emit.mul(first, pair_bytes), _PAIRS_A_TURN * pair_bytes)
            for step in range(_PAIRS_A_TURN):
                pair = emit.add(first, step)
                columns = [emit.load(key, emit.mul(pair, pair_bytes), self.codes_kind) for key in pointers]
                for row, pointer in enumerate(self.pointers):
                    value = self._pair(pointer, emit.mul(pair, 4))
                    for place, column in enumerate(columns, row * len(columns)):
                        sums[place] = self.add_pairs(emit, sums[place], column, value)
            return sums

        before = [emit.every(0)] * (len(self.rows) * KEY_VECTORS)
        sums = emit.loop(0, shape.head_dim // 2, _PAIRS_A_TURN, turn, before)
        for block in keys.next_blocks:
            emit.prefetch(block, shape.scales_offset)
        scales = [emit.load(key, shape.scales_offset, emit.vector) for key in pointers]
        return [
            self._scaled(sums[row * KEY_VECTORS : (row + 1) * KEY_VECTORS], scales, pointer)
            for row, pointer in enumerate(self.pointers)
        ]

    def _scaled(self, sums: list[Value], scales: list[Value], query: Value) -> list[Value]:
        """A row's scores from sums of codes."""
        build, emit = self.emit.build, self.emit
        unit = emit.splat(emit.load(query, 2 * self.shape.head_dim, F32))
        return [
            build.fmul(build.fmul(build.sitofp(value, emit.vector), scale), unit)
            for value, scale in zip(sums, scales, strict=True)
        ]

    def _pair(self, pointer: Value, offset: Value) -> Value:
        """Two neighbouring codes in all lanes."""
        return self.emit.build.bitcast(self.emit.splat(self.emit.load(pointer, offset, I32)), self.codes_kind)

    def _ask_between(self, keys: Keys, row: int) -> None:
        self._ask_for_values(keys, row, 0)

    def _ask_for_values(self, keys: Keys, row: int, begin: int) -> None:
        """A row's share of the parts of the next values that are asked for early, from part `begin` on."""
        shape, part_bytes = self.shape, self.shape.scales_offset // _PARTS
        lines = range(begin * part_bytes, (begin + _EARLY_PARTS) * part_bytes, _LINE_BYTES)
        own = lines[len(lines) * row // len(self.rows) : len(lines) * (row + 1) // len(self.rows)]
        for block in keys.next_blocks:
            for line in own:
                self.emit.prefetch(block, shape.values_offset + line)

    def _take_values(self, keys: Keys, sums: list[Value]) -> list[Value]:
        """Add the keys' values by their shares."""
        self._code_shares(keys)

        def add(columns: range, before: list[Value]) -> list[Value]:
            return self._add_products(
                keys if not columns.start else keys._replace(next_blocks=[]), columns, before
            )

        return self._by_columns(add, sums)

    def _code_shares(self, keys: Keys) -> None:
        """Shares times the values' scales as whole numbers, in steps of a row's own."""
        emit, build = self.emit, self.emit.build
        tops = self._weigh_scales(self._value_scales(keys))
        largest = build.bitcast(self._largest_of_each(tops), emit.vector)
        emit.store(build.fdiv(emit.constant(HIGHEST_SHARE), largest), self.share_steps, 0)
        emit.store(build.fmul(largest, emit.constant(1 / HIGHEST_SHARE)), self.share_units, 0)
        for row in range(len(self.rows)):
            self._ask_for_values(keys, row, _EARLY_PARTS)
            steps = emit.splat(emit.load(self.share_steps, 4 * row, F32))
            begin = row * KEY_VECTORS * self.vector_bytes
            places = range(begin, begin + KEY_VECTORS * self.vector_bytes, self.vector_bytes)
            shares = [emit.load(self.shares, place, emit.vector) for place in places]
            codes = [nearest(emit, build.fmul(share, steps)) for share in shares]
            store_codes(emit, codes, emit.at(self.share_codes, begin // 2))

    def _value_scales(self, keys: Keys) -> list[Value]:
        """0 behind the last key: what lies there may be anything, and no code but 0 makes nothing of it."""
        emit, build, scales = self.emit, self.emit.build, []
        lanes = ir.Constant(emit.integers, list(range(emit.num_lanes)))
        for key, block, offset in zip(keys.numbers, keys.blocks, keys.offsets, strict=True):
            place = emit.add(emit.mul(offset, 4), self.shape.values_offset + self.shape.scales_offset)
            is_there = build.icmp_signed("<", lanes, self._splat_int(build.sub(self.end, key)))
            scales.append(build.select(is_there, emit.load(block, place, emit.vector), emit.zeros))
        for block in keys.next_blocks:
            emit.prefetch(block, self.shape.values_offset + self.shape.scales_offset)
        return scales

    def _weigh_scales(self, scales: list[Value]) -> list[Value]:
        """Multiply shares by their values' scales; the bits of each row's largest product, lane by lane.

        No share is nothing, also of a value that is no number: its key may be one that the row does not see.
        """
        emit, build, tops = self.emit, self.emit.build, []
        for row in range(len(self.rows)):
            top = build.bitcast(emit.constant(SMALLEST), emit.integers)
            for vector, scale in enumerate(scales):
                place = (row * KEY_VECTORS + vector) * self.vector_bytes
                share = emit.load(self.shares, place, emit.vector)
                is_any = build.fcmp_unordered("!=", share, emit.zeros)
                product = build.select(is_any, build.fmul(share, scale), emit.zeros)
                emit.store(product, self.shares, place)
                top = larger_magnitude(emit, top, build.bitcast(product, emit.integers))
            tops.append(top)
        return tops

    def _largest_of_each(self, vectors: list[Value]) -> Value:
        """Each vector's largest lane, in the lane of the vector's number: all of them halved side by side."""
        emit, count, width = self.emit, 1, self.emit.num_lanes
        while width > 1:
            width //= 2
            first = [2 * width * number + lane for number in range(2 * count) for lane in range(width)]
            padded = [*vectors, *vectors[-1:]] if len(vectors) % 2 else vectors
            vectors = [
                larger_magnitude(
                    emit,
                    self._chosen(one, other, first),
                    self._chosen(one, other, [lane + width for lane in first]),
                )
                for one, other in zip(padded[::2], padded[1::2], strict=True)
            ]
            count *= 2
        return vectors[0]

    def _chosen(self, one: Value, other: Value, lanes: list[int]) -> Value:
        order = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        return self.emit.build.shuffle_vector(one, other, order)

    def _add_products(self, keys: Keys, columns: range, before: list[Value]) -> list[Value]:
        """Sums of whole numbers over all keys of the portion, then scaled and added."""
        emit, build = self.emit, self.emit.build
        products = [emit.every(0)] * len(before)
        for vector in range(KEY_VECTORS):
            products = self._vector_products(keys, vector, columns, products)
        units = [emit.splat(emit.load(self.share_units, 4 * row, F32)) for row in range(len(self.rows))]
        return [
            emit.fma(build.sitofp(product, emit.vector), units[place // len(columns)], value)
            for place, (product, value) in enumerate(zip(products, before, strict=True))
        ]

    def _vector_products(self, keys: Keys, vector: int, columns: range, before: list[Value]) -> list[Value]:
        emit, shape = self.emit, self.shape
        pair_bytes = 4 * shape.head_dim
        asked = pair_bytes * (_PARTS - 2 * _EARLY_PARTS) // _PARTS
        first_asked = shape.values_offset + shape.scales_offset * 2 * _EARLY_PARTS // _PARTS
        line = emit.add(emit.mul(keys.offsets[vector], 2 * shape.head_dim), shape.values_offset)
        pointer = emit.at(keys.blocks[vector], line)
        num_keys = emit.minimum(emit.build.sub(self.end, keys.numbers[vector]), emit.num_lanes)

        def one_pair(pair: Value, sums: list[Value]) -> list[Value]:
            if keys.next_blocks:
                self._ask_for(keys.next_blocks[vector], emit.add(emit.mul(pair, asked), first_asked), asked)
            values = emit.at(pointer, emit.mul(pair, pair_bytes))
            parts = [emit.load(values, self.vector_bytes * column, self.codes_kind) for column in columns]
            for row in range(len(self.rows)):
                offset = (row * KEY_VECTORS + vector) * self.vector_bytes // 2
                share = self._pair(self.share_codes, emit.add(emit.mul(pair, 4), offset))
                for place, part in enumerate(parts, row * len(columns)):
                    sums[place] = self.add_pairs(emit, sums[place], part, share)
            return sums

        num_pairs = emit.build.ashr(emit.add(num_keys, 1), emit.number(1))
        return emit.loop(0, num_pairs, 1, one_pair, before)
