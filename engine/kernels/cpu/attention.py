"""Attention of a step's queries over the paged cache: prompts, chunks and decode steps in one kernel.

A softmax kept up to date while the keys are read once (Milakov and Gimelshein, 2018; FlashAttention, 2022). What a
query gets depends on its own keys only, not on which queries or sequences are computed with it.
"""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import F32, I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine

ATTEND_FIELDS = 11
"""qkv, its row stride, cache, block tables, their row stride, pieces, number of pieces, out, its row stride,
window, and the counter that threads take pieces from (0 before the call).

A piece is four int64: first token, queries (1 or `queries_a_piece`), first query's position, row of the tables.
"""

COUNTER_FIELD = 10
_LOWEST = -1e30
"""The largest score before any: finite, so that its difference to minus infinity is not NaN."""
_LINE_BYTES = 64
_SUMS = 2
"""Chains of multiply-adds that make one score."""


def queries_a_piece(machine: Machine, shape: CacheShape) -> int:
    """How many neighbouring queries of a sequence are attended together, where there are so many."""
    return max(1, _num_sums(machine) // (_SUMS * shape.num_sharing))


def _num_sums(machine: Machine) -> int:
    """Registers that hold sums while values are added up."""
    return machine.num_registers * 3 // 4


def emit_attention(module: ir.Module, machine: Machine, shape: CacheShape) -> None:
    """Define `attend(record)`: out is float32 (tokens, heads * head_dim). Every thread of a region calls it."""
    most = queries_a_piece(machine, shape)
    tiles = {num: _Tile(module, machine, shape, num).function for num in {1, most}}
    emit = Emitter(module, "attend", [POINTER], machine.num_lanes)
    record = emit.arguments[0]
    qkv, stride, cache, tables, table_stride, pieces, num_pieces, out, out_stride, window = emit.fields(record, 10)
    head_bytes = 4 * shape.head_dim
    group_bytes = shape.num_sharing * head_bytes

    def one(number: Value) -> None:
        heads = emit.number(shape.num_kv_heads)
        piece = emit.at(emit.pointer(pieces), emit.mul(emit.build.sdiv(number, heads), 32))
        head = emit.build.srem(number, heads)
        token, num_queries, position, row = emit.fields(piece, 4)
        shift = emit.mul(head, group_bytes)
        arguments = [
            emit.at(emit.pointer(qkv), emit.add(emit.mul(token, stride), shift)),
            stride,
            emit.at(emit.pointer(cache), emit.mul(head, shape.head_bytes)),
            emit.at(emit.pointer(tables), emit.mul(row, table_stride)),
            position,
            window,
            emit.at(emit.pointer(out), emit.add(emit.mul(token, out_stride), shift)),
            out_stride,
        ]

        def caller(function: Value):  # type: ignore[no-untyped-def]
            return lambda: emit.build.call(function, arguments)

        emit.choose(num_queries, {num: caller(function) for num, function in tiles.items()})

    count = emit.mul(num_pieces, shape.num_kv_heads)
    emit.take_each(emit.at(record, 8 * COUNTER_FIELD), count, one)
    emit.finish()


class _Tile:
    """`attend_n(queries, stride, keys, table, position, window, out, out's stride)`: n queries of one key head.

    The rows of its arrays are queries times the heads that share the key head.
    """

    def __init__(self, module: ir.Module, machine: Machine, shape: CacheShape, num_queries: int) -> None:
        kinds = [POINTER, I64, POINTER, POINTER, I64, I64, POINTER, I64]
        self.emit = Emitter(module, f"attend_{num_queries}", kinds, machine.num_lanes)
        self.function = self.emit.function
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.shape, self.num_queries = shape, num_queries
        self.num_rows = num_queries * shape.num_sharing
        self.num_sums = _num_sums(machine)
        self.vector_bytes = 4 * machine.num_lanes
        self.queries, self.stride, self.keys, self.table, self.position, self.window, self.out, self.out_stride = (
            self.emit.arguments
        )
        one_vector = self.num_rows * machine.num_lanes
        self.highest, self.weights, self.shares = (self.emit.scratch(one_vector) for _ in range(3))
        self.sums = self.emit.scratch(self.num_rows * shape.head_dim)
        self._emit()

    def _emit(self) -> None:
        emit, lanes = self.emit, self.emit.num_lanes
        self._clear()
        end = emit.add(self.position, self.num_queries)
        first = emit.maximum(emit.build.sub(emit.add(self.position, 1), self.window), 0)
        is_windowed = emit.build.icmp_signed(">", self.window, emit.number(0))
        first = emit.build.select(is_windowed, first, emit.number(0))
        begin = emit.mul(emit.build.sdiv(first, emit.number(lanes)), lanes)
        self.newest = emit.build.sub(end, emit.number(1))
        emit.loop(begin, end, lanes, self._some_keys)
        self._write()
        emit.finish()

    def _row(self, row: int) -> tuple[int, int]:
        """Which query and which of the sharing heads a row is."""
        return divmod(row, self.shape.num_sharing)

    def _clear(self) -> None:
        emit = self.emit
        for row in range(self.num_rows):
            emit.store(emit.constant(_LOWEST), self.highest, row * self.vector_bytes)
            emit.store(emit.zeros, self.weights, row * self.vector_bytes)

        def clear(place: Value, _: list[Value]) -> None:
            emit.store(emit.zeros, self.sums, place)

        emit.loop(0, 4 * self.num_rows * self.shape.head_dim, self.vector_bytes, clear)

    def _some_keys(self, first_key: Value, _: list[Value]) -> None:
        """Take in one vector's worth of neighbouring keys and their values."""
        emit, shape = self.emit, self.shape
        size = emit.number(shape.block_size)
        block = emit.load(self.table, emit.mul(emit.build.sdiv(first_key, size), 8), I64)
        offset = emit.build.srem(first_key, size)
        if shape.block_size == emit.num_lanes:
            self._ask_for(emit.minimum(emit.add(first_key, emit.num_lanes), self.newest))
        keys = emit.at(self.keys, emit.mul(block, shape.block_bytes))
        scores = self._scores(emit.at(keys, emit.mul(offset, shape.number_bytes)))
        self._weigh([self._masked(score, row, first_key) for row, score in enumerate(scores)])
        line = emit.mul(offset, shape.head_dim * shape.number_bytes)
        num_left = emit.build.sub(emit.add(self.position, self.num_queries), first_key)
        # No further: what lies behind the newest key may be anything, and nothing times NaN is NaN.
        self._add_values(
            emit.at(keys, emit.add(line, shape.values_offset)), emit.minimum(num_left, emit.num_lanes)
        )

    def _ask_for(self, key: Value) -> None:
        """Ask for the block of a key that is taken in next: blocks lie anywhere, which no hardware guesses."""
        emit, shape = self.emit, self.shape
        place = emit.mul(emit.build.sdiv(key, emit.number(shape.block_size)), 8)
        block = emit.at(self.keys, emit.mul(emit.load(self.table, place, I64), shape.block_bytes))
        for line in range(0, shape.head_bytes, _LINE_BYTES):
            emit.prefetch(block, line)
            emit.prefetch(block, shape.values_offset + line)

    def _scores(self, keys: Value) -> list[Value]:
        emit, shape = self.emit, self.shape
        pointers = []
        for row in range(self.num_rows):
            query, head = self._row(row)
            place = emit.add(emit.mul(self.stride, query), 4 * shape.head_dim * head)
            pointers.append(emit.at(self.queries, place))

        def turn(feature: Value, sums: list[Value]) -> list[Value]:
            for step in range(2 * _SUMS):
                number = emit.add(feature, step)
                line = emit.mul(number, shape.block_size * shape.number_bytes)
                column = emit.load_numbers(keys, line, shape.stored)
                for row, pointer in enumerate(pointers):
                    place = row * _SUMS + step % _SUMS
                    value = emit.splat(emit.load(pointer, emit.mul(number, 4), F32))
                    sums[place] = emit.fma(column, value, sums[place])
            return sums

        sums = emit.loop(0, shape.head_dim, 2 * _SUMS, turn, [emit.zeros] * (self.num_rows * _SUMS))
        scale = emit.constant(shape.head_dim**-0.5)
        pairs = zip(sums[::_SUMS], sums[1::_SUMS], strict=True)
        return [emit.build.fmul(emit.build.fadd(first, second), scale) for first, second in pairs]

    def _masked(self, score: Value, row: int, first_key: Value) -> Value:
        """The score where the row's query may look, minus infinity elsewhere."""
        emit, lanes = self.emit, self.emit.num_lanes
        wide = ir.VectorType(I32, lanes)
        position = emit.add(self.position, self._row(row)[0])
        numbers = ir.Constant(wide, list(range(lanes)))
        newest = self._splat_int(emit.build.sub(position, first_key))
        seen = emit.build.icmp_signed("<=", numbers, newest)
        oldest = self._splat_int(emit.build.sub(emit.build.sub(position, self.window), first_key))
        is_unbounded = emit.build.icmp_signed("<=", self.window, emit.number(0))
        oldest = emit.build.select(is_unbounded, ir.Constant(wide, [-1] * lanes), oldest)
        seen = emit.build.and_(seen, emit.build.icmp_signed(">", numbers, oldest))
        return emit.build.select(seen, score, emit.constant(float("-inf")))

    def _splat_int(self, number: Value) -> Value:
        build, lanes = self.emit.build, self.emit.num_lanes
        wide = ir.VectorType(I32, lanes)
        undefined = ir.Constant(wide, ir.Undefined)
        first = build.insert_element(undefined, build.trunc(number, I32), ir.Constant(I32, 0))
        return build.shuffle_vector(first, undefined, ir.Constant(wide, [0] * lanes))

    def _weigh(self, scores: list[Value]) -> None:
        """Turn scores into shares, after scaling down what was summed where a row has a new highest score."""
        emit, build = self.emit, self.emit.build
        rises, highest = [], []
        for row, score in enumerate(scores):
            before = emit.load(self.highest, row * self.vector_bytes, emit.vector)
            top = emit.splat(emit.largest(score))
            highest.append(emit.max(before, top))
            lane = ir.Constant(I32, 0)
            rises.append(
                build.fcmp_ordered(">", build.extract_element(top, lane), build.extract_element(before, lane))
            )
        any_rises = rises[0]
        for other in rises[1:]:
            any_rises = build.or_(any_rises, other)
        with emit.when(any_rises):
            for row, top in enumerate(highest):
                self._scale_down(row, top)
        for row, (score, top) in enumerate(zip(scores, highest, strict=True)):
            share = emit.exp(build.fsub(score, top))
            emit.store(share, self.shares, row * self.vector_bytes)
            weight = emit.load(self.weights, row * self.vector_bytes, emit.vector)
            emit.store(build.fadd(weight, share), self.weights, row * self.vector_bytes)

    def _scale_down(self, row: int, top: Value) -> None:
        emit, build, place = self.emit, self.emit.build, row * self.vector_bytes
        factor = emit.exp(build.fsub(emit.load(self.highest, place, emit.vector), top))
        emit.store(top, self.highest, place)
        emit.store(build.fmul(emit.load(self.weights, place, emit.vector), factor), self.weights, place)
        for part in range(0, 4 * self.shape.head_dim, self.vector_bytes):
            offset = 4 * self.shape.head_dim * row + part
            emit.store(build.fmul(emit.load(self.sums, offset, emit.vector), factor), self.sums, offset)

    def _add_values(self, values: Value, num_keys: Value) -> None:
        """Add the first `num_keys` values by their shares, as many vectors of a row at once as registers hold."""
        num_vectors = self.shape.head_dim // self.emit.num_lanes
        at_once = max(1, self.num_sums // self.num_rows)
        for first in range(0, num_vectors, at_once):
            self._add_columns(values, num_keys, range(first, min(num_vectors, first + at_once)))

    def _add_columns(self, values: Value, num_keys: Value, columns: range) -> None:
        emit, shape = self.emit, self.shape
        rows = range(self.num_rows)
        places = [4 * shape.head_dim * row + self.vector_bytes * column for row in rows for column in columns]

        def one_key(key: Value, sums: list[Value]) -> list[Value]:
            line = emit.at(values, emit.mul(key, shape.head_dim * shape.number_bytes))
            step = emit.num_lanes * shape.number_bytes
            parts = [emit.load_numbers(line, step * column, shape.stored) for column in columns]
            for row in rows:
                offset = emit.add(emit.mul(key, 4), row * self.vector_bytes)
                share = emit.splat(emit.load(self.shares, offset, F32))
                for number, part in enumerate(parts):
                    place = row * len(columns) + number
                    sums[place] = emit.fma(part, share, sums[place])
            return sums

        before = [emit.load(self.sums, place, emit.vector) for place in places]
        for place, value in zip(places, emit.loop(0, num_keys, 1, one_key, before), strict=True):
            emit.store(value, self.sums, place)

    def _write(self) -> None:
        emit, shape = self.emit, self.shape
        for row in range(self.num_rows):
            query, head = self._row(row)
            target = emit.at(self.out, emit.add(emit.mul(self.out_stride, query), 4 * shape.head_dim * head))
            weight = emit.splat(emit.total(emit.load(self.weights, row * self.vector_bytes, emit.vector)))
            for part in range(0, 4 * shape.head_dim, self.vector_bytes):
                value = emit.load(self.sums, 4 * shape.head_dim * row + part, emit.vector)
                emit.store(emit.build.fdiv(value, weight), target, part)
