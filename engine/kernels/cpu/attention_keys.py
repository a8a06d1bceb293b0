"""The inner loop of attention: some queries of one key head take in neighbouring keys and their values."""

import math
from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.attention_state import QUERY_BYTES, Taken
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import F32, I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.exponential import exp_of_moderate
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.stored_numbers import load_numbers

_LINE_BYTES = 64
_FEATURES_A_TURN = 4
KEY_VECTORS = 2
"""Vectors of keys that are taken in together: what is waited for in one is computed in the other."""
_LEEWAY = 8.0
"""A row's scores may be so much above what its shares are relative to before that is raised: e⁸, or 2⁸, loses
nothing in float32, and what was summed is hardly ever scaled down.
"""


def keys_at_once(machine: Machine) -> int:
    """Keys are taken in by so many, from a multiple of it on."""
    return KEY_VECTORS * machine.num_lanes


def rows_at_once(machine: Machine) -> int:
    """How many queries of one head the registers have room for."""
    return _num_sums(machine) // KEY_VECTORS


def _num_sums(machine: Machine) -> int:
    """Registers that hold sums."""
    return machine.num_registers * 3 // 4


class Keys(NamedTuple):
    """Some vectors of neighbouring keys: of each the first one's number, its block, and its place in that.

    `next_blocks` are what is asked for meanwhile, if anything is.
    """

    numbers: list[Value]
    blocks: list[Value]
    offsets: list[Value]
    next_blocks: list[Value]


class _Values(NamedTuple):
    """A vector of keys' values: where, how many, the number of the vector, and what to ask for meanwhile."""

    pointer: Value
    num_keys: Value
    vector: int
    asked: Value | None


class KeyTaker:
    """`take_in_n(qkv, stride, queries, keys, table, begin, end, window, state, next blocks …)`: n queries.

    qkv, keys: those of the first head that shares the key head, of the first token and the first block. Rows of
    the state are queries times the heads that share the key head; what it holds is continued. The next blocks are
    what the thread will read after these.
    """

    def __init__(self, module: ir.Module, machine: Machine, shape: CacheShape, num_queries: int) -> None:
        kinds = [POINTER, I64, POINTER, POINTER, POINTER, I64, I64, I64, *[POINTER] * (1 + KEY_VECTORS)]
        self.emit = emit = Emitter(module, f"take_in_{num_queries}", kinds, machine.num_lanes)
        self.function = emit.function
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.shape = shape
        self.num_sums = _num_sums(machine)
        self.vector_bytes = 4 * machine.num_lanes
        self.is_asking = shape.block_size == machine.num_lanes
        qkv, stride, queries, self.keys, self.table, begin, self.end, self.window, state = emit.arguments[:9]
        self.following = emit.arguments[9:]
        self.positions, self.pointers = [], []
        for number in range(num_queries):
            token, position = emit.fields(emit.at(queries, QUERY_BYTES * number), 2)
            self.positions.append(position)
            row = self._query(qkv, number, emit.mul(token, stride))
            self.pointers += [emit.at(row, self._head_bytes() * head) for head in range(shape.num_sharing)]
        self.rows = [Taken(emit, shape, state, number) for number in range(len(self.pointers))]
        self.places = [
            (row, part) for row in self.rows for part in range(0, 4 * shape.head_dim, self.vector_bytes)
        ]
        self._prepare(machine)
        self.shares = emit.scratch(len(self.rows) * KEY_VECTORS * machine.num_lanes)
        last = emit.build.sub(self.end, emit.number(1))
        self.last_vector = emit.build.sub(last, emit.build.srem(last, emit.number(machine.num_lanes)))
        self._loop(begin)
        emit.finish()

    def _query(self, queries: Value, number: int, offset: Value) -> Value:
        """Where the first head of the query of that number is: `queries` are rows of a step's tokens."""
        return self.emit.at(queries, offset)

    def _head_bytes(self) -> int:
        """From one head of a query to the next."""
        return 4 * self.shape.head_dim

    def _power(self, scores: Value) -> Value:
        """What a score, less that which shares are relative to, makes a share."""
        return exp_of_moderate(self.emit, scores)

    def _prepare(self, machine: Machine) -> None:
        """Take what room is needed besides."""

    def _loop(self, begin: Value) -> None:
        """With sums in registers from the first key to the last where there are so few."""
        emit, step = self.emit, KEY_VECTORS * self.emit.num_lanes
        kept = self.places if 2 * len(self.places) <= self.num_sums else []
        before = [row.load_sum(part) for row, part in kept]
        after = emit.loop(begin, self.end, step, self._some_keys, before)
        for (row, part), value in zip(kept, after, strict=True):
            row.store_sum(value, part)

    def _some_keys(self, first_key: Value, sums: list[Value]) -> list[Value]:
        """Take in some vectors of neighbouring keys and their values."""
        emit, lanes = self.emit, self.emit.num_lanes
        numbers = [emit.add(first_key, lanes * vector) for vector in range(KEY_VECTORS)]
        # Of a vector behind the last key nothing counts: the last one is read in its place.
        places = [self._block(emit.minimum(key, self.last_vector)) for key in numbers]
        next_blocks = self._next_blocks(emit.add(first_key, lanes * KEY_VECTORS)) if self.is_asking else []
        keys = Keys(numbers, [block for block, _ in places], [offset for _, offset in places], next_blocks)
        scores = self._seen(self._scores(keys), first_key, numbers)
        return self._take_values(keys, self._weigh(scores, keys, sums))

    def _seen(self, scores: list[list[Value]], first_key: Value, numbers: list[Value]) -> list[list[Value]]:
        """Scores of keys that their row may look at, minus infinity of others: mostly there are none."""

        def masked() -> list[Value]:
            return [
                self._masked(score, row, key)
                for row, vectors in enumerate(scores)
                for score, key in zip(vectors, numbers, strict=True)
            ]

        flat = [score for vectors in scores for score in vectors]
        seen = self.emit.changed_where(self._is_masked(first_key), masked, flat)
        return [seen[place : place + KEY_VECTORS] for place in range(0, len(seen), KEY_VECTORS)]

    def _is_masked(self, first_key: Value) -> Value:
        """Whether a row may not look at all of the keys from that one on."""
        emit, build = self.emit, self.emit.build
        lowest = highest = self.positions[0]
        for position in self.positions[1:]:
            lowest, highest = emit.minimum(lowest, position), emit.maximum(highest, position)
        is_newer = build.icmp_signed(">", emit.add(first_key, KEY_VECTORS * emit.num_lanes - 1), lowest)
        is_windowed = build.icmp_signed(">", self.window, emit.number(0))
        is_older = build.icmp_signed("<=", first_key, build.sub(highest, self.window))
        return build.or_(is_newer, build.and_(is_windowed, is_older))

    def _block(self, key: Value) -> tuple[Value, Value]:
        """Where the keys of a key's block begin, and the key's number in it."""
        emit, size = self.emit, self.emit.number(self.shape.block_size)
        block = emit.load(self.table, emit.mul(emit.build.sdiv(key, size), 8), I64)
        return emit.at(self.keys, emit.mul(block, self.shape.block_bytes)), emit.build.srem(key, size)

    def _next_blocks(self, key: Value) -> list[Value]:
        """The blocks that are read next, from that key on: they lie anywhere, which no hardware guesses."""
        emit = self.emit
        is_there = emit.build.icmp_signed("<", key, self.end)
        blocks = []
        for vector, following in enumerate(self.following):
            number = emit.minimum(emit.add(key, vector * emit.num_lanes), self.last_vector)
            blocks.append(emit.build.select(is_there, self._block(number)[0], following))
        return blocks

    def _ask_for(self, block: Value, begin: Value, num_bytes: int) -> None:
        for line in range(0, num_bytes, _LINE_BYTES):
            self.emit.prefetch(block, self.emit.add(begin, line))

    def _scores(self, keys: Keys) -> list[list[Value]]:
        """A row's scores, each vector by one chain of multiply-adds."""
        emit, shape = self.emit, self.shape
        line_bytes = shape.block_size * shape.number_bytes
        pointers = [
            emit.at(block, emit.mul(offset, shape.number_bytes))
            for block, offset in zip(keys.blocks, keys.offsets, strict=True)
        ]

        def turn(feature: Value, sums: list[Value]) -> list[Value]:
            for block in keys.next_blocks:
                self._ask_for(block, emit.mul(feature, line_bytes), _FEATURES_A_TURN * line_bytes)
            for step in range(_FEATURES_A_TURN):
                number = emit.add(feature, step)
                line = emit.mul(number, line_bytes)
                columns = [load_numbers(emit, key, line, shape.stored) for key in pointers]
                for row, pointer in enumerate(self.pointers):
                    value = emit.splat(emit.load(pointer, emit.mul(number, 4), F32))
                    for place, column in enumerate(columns, row * len(columns)):
                        sums[place] = emit.fma(column, value, sums[place])
            return sums

        before = [emit.zeros] * (len(self.rows) * KEY_VECTORS)
        sums = emit.loop(0, shape.head_dim, _FEATURES_A_TURN, turn, before)
        scale = emit.constant(shape.head_dim**-0.5)
        scores = [emit.build.fmul(value, scale) for value in sums]
        return [scores[place : place + KEY_VECTORS] for place in range(0, len(scores), KEY_VECTORS)]

    def _masked(self, score: Value, row: int, first_key: Value) -> Value:
        """The score where the row's query may look, minus infinity elsewhere."""
        emit, lanes = self.emit, self.emit.num_lanes
        position = self.positions[row // self.shape.num_sharing]
        numbers = ir.Constant(emit.integers, list(range(lanes)))
        newest = self._splat_int(emit.build.sub(position, first_key))
        seen = emit.build.icmp_signed("<=", numbers, newest)
        oldest = self._splat_int(emit.build.sub(emit.build.sub(position, self.window), first_key))
        is_unbounded = emit.build.icmp_signed("<=", self.window, emit.number(0))
        oldest = emit.build.select(is_unbounded, emit.every(-1), oldest)
        seen = emit.build.and_(seen, emit.build.icmp_signed(">", numbers, oldest))
        return emit.build.select(seen, score, emit.constant(-math.inf))

    def _splat_int(self, number: Value) -> Value:
        return self.emit.splat(self.emit.build.trunc(number, I32))

    def _weigh(self, scores: list[list[Value]], keys: Keys, sums: list[Value]) -> list[Value]:
        """Turn scores into shares, after scaling down what was summed where a row's are far above those before."""
        emit, build = self.emit, self.emit.build
        leeway, rises = emit.constant(_LEEWAY), []
        for row, vectors in zip(self.rows, scores, strict=True):
            limit = build.fadd(row.load_highest(), leeway)
            rises += [build.fcmp_ordered(">", score, limit) for score in vectors]
        any_rises = rises[0]
        for other in rises[1:]:
            any_rises = build.or_(any_rises, other)
        sums = emit.changed_where_any(any_rises, lambda: self._raise(scores, sums), sums)
        for number, (row, vectors) in enumerate(zip(self.rows, scores, strict=True)):
            self._ask_between(keys, number)
            highest, weight = row.load_highest(), row.load_weight()
            for vector, score in enumerate(vectors):
                share = self._power(build.fsub(score, highest))
                emit.store(share, self.shares, (number * KEY_VECTORS + vector) * self.vector_bytes)
                weight = build.fadd(weight, share)
            row.store_weight(weight)
        return sums

    def _raise(self, scores: list[list[Value]], sums: list[Value]) -> list[Value]:
        """Make shares relative to the highest score of those rows that need it; of the others nothing changes."""
        emit, build, changed = self.emit, self.emit.build, []
        num_parts = len(self.places) // len(self.rows)
        for number, (row, vectors) in enumerate(zip(self.rows, scores, strict=True)):
            top = vectors[0]
            for score in vectors[1:]:
                top = emit.max(score, top)
            top, before = emit.splat(emit.largest(top)), row.load_highest()
            is_far = build.fcmp_ordered(">", top, build.fadd(before, emit.constant(_LEEWAY)))
            highest = build.select(is_far, top, before)
            factor = self._power(build.fsub(before, highest))
            row.store_highest(highest)
            row.store_weight(build.fmul(row.load_weight(), factor))
            own = range(number * num_parts, (number + 1) * num_parts)
            if sums:
                changed += [build.fmul(sums[place], factor) for place in own]
                continue
            for _, part in self.places[own.start : own.stop]:
                row.store_sum(build.fmul(row.load_sum(part), factor), part)
        return changed

    def _ask_between(self, keys: Keys, row: int) -> None:
        """Ask for what comes next between a row's shares and another's."""

    def _take_values(self, keys: Keys, sums: list[Value]) -> list[Value]:
        """Add the keys' values by their shares."""
        emit, shape = self.emit, self.shape
        for vector, (key, block, offset) in enumerate(zip(keys.numbers, keys.blocks, keys.offsets, strict=True)):
            line = emit.mul(offset, shape.head_dim * shape.number_bytes)
            pointer = emit.at(block, emit.add(line, shape.values_offset))
            # No further than the last: what lies behind it may be anything, and nothing times NaN is NaN.
            num_keys = emit.minimum(emit.build.sub(self.end, key), emit.num_lanes)
            asked = emit.at(keys.next_blocks[vector], shape.values_offset) if keys.next_blocks else None
            values = _Values(pointer, num_keys, vector, asked)

            def add(columns: range, before: list[Value], values: _Values = values) -> list[Value]:
                return self._add_columns(
                    values if not columns.start else values._replace(asked=None), columns, before
                )

            sums = self._by_columns(add, sums)
        return sums

    def _by_columns(self, add: Callable[[range, list[Value]], list[Value]], sums: list[Value]) -> list[Value]:
        """Add to all sums, as many vectors of a row at once as registers hold."""
        num_vectors = self.shape.head_dim // self.emit.num_lanes
        if sums:
            return add(range(num_vectors), sums)
        at_once = max(1, self.num_sums // len(self.rows))
        for first in range(0, num_vectors, at_once):
            columns = range(first, min(num_vectors, first + at_once))
            places = [(row, self.vector_bytes * column) for row in self.rows for column in columns]
            after = add(columns, [row.load_sum(part) for row, part in places])
            for (row, part), value in zip(places, after, strict=True):
                row.store_sum(value, part)
        return []

    def _add_columns(self, values: _Values, columns: range, before: list[Value]) -> list[Value]:
        emit, shape = self.emit, self.shape
        row_bytes, step = shape.head_dim * shape.number_bytes, emit.num_lanes * shape.number_bytes

        def one_key(key: Value, sums: list[Value]) -> list[Value]:
            line = emit.mul(key, row_bytes)
            if values.asked is not None:
                self._ask_for(values.asked, line, row_bytes)
            parts = [
                load_numbers(emit, emit.at(values.pointer, line), step * column, shape.stored)
                for column in columns
            ]
            for number in range(len(self.rows)):
                offset = (number * KEY_VECTORS + values.vector) * self.vector_bytes
                share = emit.splat(emit.load(self.shares, emit.add(emit.mul(key, 4), offset), F32))
                for place, part in enumerate(parts, number * len(columns)):
                    sums[place] = emit.fma(part, share, sums[place])
            return sums

        return emit.loop(0, values.num_keys, 1, one_key, before)
