"""Attention of a step's queries over the paged cache: prompts, chunks and decode steps in one kernel.

A softmax kept up to date while the keys are read once (Milakov and Gimelshein, 2018; FlashAttention, 2022). What a
query gets depends on its own keys only, not on which queries or sequences are computed with it.
"""

from typing import NamedTuple

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.attention_codes import CodeTaker, query_code_bytes, write_query_codes
from vllm_obs.engine.kernels.cpu.attention_keys import KEY_VECTORS, KeyTaker, keys_at_once, rows_at_once
from vllm_obs.engine.kernels.cpu.attention_state import QUERY_BYTES, Taken, query_state_bytes
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.worksharing import take_ahead

ATTEND_FIELDS = 12
"""qkv, its row stride, cache, block tables, their row stride, pieces, number of pieces, out, its row stride,
window, the counter that threads take pieces from (0 before the call), and queries.

A query is three int64: token, position, row of the tables. A piece is three int64: its first query, how many it
has (one of the sizes of its form), and the end of the keys that they read together. Before it their tables are the
same; behind it each goes on alone.
"""

COUNTER_FIELD = 10
PIECE_FIELDS = 3
_LEAST_UNITS = 6
"""Pieces times key heads: three and two threads would leave one of them idle a third of the time."""


class PieceForm(NamedTuple):
    """What pieces may be like. sizes: how many queries, rising. Keys that are read together end with a multiple of
    `keys_at_once`, or with the last query's own. In fewer than `least_pieces` there is too little to share out.
    """

    sizes: tuple[int, ...]
    block_size: int
    keys_at_once: int
    least_pieces: int


def piece_form(machine: Machine, shape: CacheShape) -> PieceForm:
    """As many queries as registers have room for, two, or one."""
    most = max(1, rows_at_once(machine) // shape.num_sharing)
    sizes = tuple(sorted({1, min(2, most), most}))
    return PieceForm(sizes, shape.block_size, keys_at_once(machine), -(-_LEAST_UNITS // shape.num_kv_heads))


def emit_attention(module: ir.Module, machine: Machine, shape: CacheShape) -> None:
    """Define `attend(record)`: out is float32 (tokens, heads * head_dim). Every thread of a region calls it."""
    sizes = piece_form(machine, shape).sizes
    taker = CodeTaker if shape.is_coded else KeyTaker
    takers = {size: taker(module, machine, shape, size).function for size in sizes}
    pieces_of = {size: _Piece(module, machine, shape, takers, size).function for size in sizes}
    emit = Emitter(module, "attend", [POINTER], machine.num_lanes)
    step = _Step(emit, machine, shape)

    def one(number: Value, following: Value) -> None:
        queries, head, num_queries, end = step.piece(number)
        next_queries, next_head, *_ = step.piece(following)
        arguments = [emit.arguments[0], queries, head, end, *step.first_blocks(next_queries, next_head)]

        def caller(function: Value):  # type: ignore[no-untyped-def]
            return lambda: emit.build.call(function, arguments)

        emit.choose(num_queries, {size: caller(function) for size, function in pieces_of.items()})

    take_ahead(emit, emit.at(emit.arguments[0], 8 * COUNTER_FIELD), step.num_units, one)
    emit.finish()


class _Step:
    """The record of a step as its function sees it. A unit of work is a piece of one key head."""

    def __init__(self, emit: Emitter, machine: Machine, shape: CacheShape) -> None:
        self._emit, self._shape = emit, shape
        self._keys_at_once = keys_at_once(machine)
        record = emit.arguments[0]
        fields = emit.fields(record, ATTEND_FIELDS)
        self.qkv, self.stride, self.cache, self.tables, self.table_stride, self._pieces, num_pieces = fields[:7]
        self.out, self.out_stride, self.window, _, self._queries = fields[7:]
        self.num_units = emit.mul(num_pieces, shape.num_kv_heads)

    def piece(self, number: Value) -> tuple[Value, Value, Value, Value]:
        """A unit's first query, its key head, how many queries it has, and the end of their common keys."""
        emit, heads = self._emit, self._emit.number(self._shape.num_kv_heads)
        piece = emit.at(emit.pointer(self._pieces), emit.mul(emit.build.sdiv(number, heads), 8 * PIECE_FIELDS))
        first, num_queries, end = emit.fields(piece, PIECE_FIELDS)
        queries = emit.at(emit.pointer(self._queries), emit.mul(first, QUERY_BYTES))
        return queries, emit.build.srem(number, heads), num_queries, end

    def keys(self, head: Value) -> Value:
        """Where the keys of the first block are."""
        return self._emit.at(self._emit.pointer(self.cache), self._emit.mul(head, self._shape.head_bytes))

    def table(self, query: Value) -> Value:
        """The blocks of a query's row."""
        row = self._emit.load(query, 16, I64)
        return self._emit.at(self._emit.pointer(self.tables), self._emit.mul(row, self.table_stride))

    def begin(self, query: Value) -> Value:
        """The first key that a query sees, or one a little earlier: they are taken in by so many at once."""
        emit = self._emit
        position = emit.load(query, 8, I64)
        first = emit.maximum(emit.build.sub(emit.add(position, 1), self.window), 0)
        is_windowed = emit.build.icmp_signed(">", self.window, emit.number(0))
        first = emit.build.select(is_windowed, first, emit.number(0))
        return emit.mul(emit.build.sdiv(first, emit.number(self._keys_at_once)), self._keys_at_once)

    def first_blocks(self, query: Value, head: Value) -> list[Value]:
        """Where the keys are that a query sees first, for each vector that is taken in at once."""
        emit, position, blocks = self._emit, self._emit.load(query, 8, I64), []
        for vector in range(KEY_VECTORS):
            key = emit.minimum(emit.add(self.begin(query), vector * emit.num_lanes), position)
            number = emit.build.sdiv(key, emit.number(self._shape.block_size))
            block = emit.load(self.table(query), emit.mul(number, 8), I64)
            blocks.append(emit.at(self.keys(head), emit.mul(block, self._shape.block_bytes)))
        return blocks


class _Piece:
    """`attend_n(record, queries, key head, end of common keys, next blocks …)`: n queries of one key head."""

    def __init__(
        self, module: ir.Module, machine: Machine, shape: CacheShape, takers: dict[int, Value], size: int
    ) -> None:
        kinds = [POINTER, POINTER, I64, I64, *[POINTER] * KEY_VECTORS]
        self.emit = Emitter(module, f"attend_{size}", kinds, machine.num_lanes)
        self.function = self.emit.function
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.shape, self.size, self.takers = shape, size, takers
        self.vector_bytes = 4 * machine.num_lanes
        self.state_bytes = query_state_bytes(machine, shape)
        self.state = self.emit.scratch(size * self.state_bytes // 4)
        self.queries, head, self.end, *self.following = self.emit.arguments[1:]
        self.step = _Step(self.emit, machine, shape)
        self.keys = self.step.keys(head)
        self.shift = self.emit.mul(head, 4 * shape.num_sharing * shape.head_dim)
        self.code_bytes = shape.num_sharing * query_code_bytes(shape)
        self.codes = self.emit.scratch(size * self.code_bytes // 4) if shape.is_coded else None
        self._emit()

    def _emit(self) -> None:
        emit = self.emit
        Taken.clear(emit, self.shape, self.state, self.size)
        if self.codes is not None:
            emit.loop(0, self.size, 1, self._code)
        if self.size == 1:
            self._take_in(1, emit.number(0), self._begin(emit.number(0)), self.end)
        else:
            self._emit_several()
        emit.loop(0, self.size, 1, self._write)
        emit.finish()

    def _emit_several(self) -> None:
        """What only some can see of their windows first, then what all read together, then the rest of each."""
        emit = self.emit
        begins = [self._begin(emit.number(number)) for number in range(self.size)]
        latest = begins[0]
        for begin in begins[1:]:
            latest = emit.maximum(latest, begin)
        common = emit.minimum(latest, self.end)

        def before(number: Value, _: list[Value]) -> None:
            self._take_in(1, number, self._begin(number), common)

        def after(number: Value, _: list[Value]) -> None:
            own_end = emit.add(emit.load(self._query(number), 8, I64), 1)
            self._take_in(1, number, emit.maximum(self._begin(number), self.end), own_end)

        emit.loop(0, self.size, 1, before)
        self._take_in(self.size, emit.number(0), common, self.end)
        emit.loop(0, self.size, 1, after)

    def _query(self, number: Value) -> Value:
        return self.emit.at(self.queries, self.emit.mul(number, QUERY_BYTES))

    def _heads(self, number: Value) -> Value:
        """Where the first head of a query is."""
        token = self.emit.load(self._query(number), 0, I64)
        place = self.emit.add(self.emit.mul(token, self.step.stride), self.shift)
        return self.emit.at(self.emit.pointer(self.step.qkv), place)

    def _codes_of(self, number: Value) -> Value:
        return self.emit.at(self.codes, self.emit.mul(number, self.code_bytes))

    def _code(self, number: Value, _: list[Value]) -> None:
        write_query_codes(self.emit, self.shape, self._heads(number), self._codes_of(number))

    def _begin(self, number: Value) -> Value:
        return self.step.begin(self._query(number))

    def _take_in(self, size: int, number: Value, begin: Value, end: Value) -> None:
        """Keys and values from `begin` to `end` for `size` queries from that one on, by the table of the first."""
        emit, step, query = self.emit, self.step, self._query(number)
        floats = emit.at(emit.pointer(step.qkv), self.shift)
        qkv = floats if self.codes is None else self._codes_of(number)
        state = emit.at(self.state, emit.mul(number, self.state_bytes))
        arguments = [qkv, step.stride, query, self.keys, step.table(query), begin, end, step.window, state]
        emit.build.call(self.takers[size], [*arguments, *self.following])

    def _write(self, number: Value, _: list[Value]) -> None:
        emit, shape = self.emit, self.shape
        token = emit.load(self._query(number), 0, I64)
        target = emit.at(emit.pointer(self.step.out), emit.add(emit.mul(token, self.step.out_stride), self.shift))
        state = emit.at(self.state, emit.mul(number, self.state_bytes))
        for head in range(shape.num_sharing):
            taken = Taken(emit, shape, state, head)
            weight = emit.splat(emit.total(taken.load_weight()))
            for part in range(0, 4 * shape.head_dim, self.vector_bytes):
                value = emit.build.fdiv(taken.load_sum(part), weight)
                emit.store(value, target, 4 * shape.head_dim * head + part)
