"""Matrix products of whole numbers: weights of 16 bits, or a file's own 4 or 8, by rows that are rounded to 16.

A piece of a panel is unpacked to 16 bits in the first cache, once for many rows. A row's result does not depend on
how many rows are computed together.
"""

from typing import NamedTuple

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.block_strip import emit_block_strip, most_strip_rows
from vllm_obs.engine.kernels.cpu.block_tile import emit_block_tile, most_rows
from vllm_obs.engine.kernels.cpu.block_unpack import Unpacking
from vllm_obs.engine.kernels.cpu.cache_asks import CacheAsks
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_finish import Finished, emit_finish
from vllm_obs.engine.kernels.cpu.linear_rows import Rows
from vllm_obs.engine.kernels.cpu.linear_tile import VECTORS_A_STRIP, vectors_a_panel
from vllm_obs.engine.kernels.cpu.row_codes import (
    CODE_BYTES,
    FACTOR_BYTES,
    GROUP_SIZE,
    GROUPS_A_PIECE,
    PIECE_SIZE,
    emit_row_codes,
    num_pieces,
)
from vllm_obs.engine.kernels.cpu.worksharing import barrier, num_threads, share, shares_of, take_each

BLOCK_LINEAR_FIELDS = 14
"""x, x's row stride, weights, inputs, out, out's row stride, rows, panels, finish, bias, room for rows' codes, the
counter that threads take panels from (0 before the call), and what is asked for meanwhile: an address of
ASK_FIELDS (see cache_asks), or 0, and that of the cache.
"""

_COUNTER_FIELD = 11
_MANY_ROWS = 8
"""From so many rows on the sums take longer than reading."""
_ROWS_AT_ONCE = 132
"""The codes and sums of so many rows stay in the second cache while a panel's pieces pass."""
_FEWEST_ROWS_AT_ONCE = 48
"""Unpacking a piece costs as much as three such rows' products with it."""


def code_row_bytes(num_inputs: int) -> int:
    """Bytes of a row in the room for codes."""
    return num_inputs * CODE_BYTES + num_pieces(num_inputs // GROUP_SIZE) * FACTOR_BYTES


def emit_block_linear(module: ir.Module, machine: Machine, shape: CacheShape, form: str) -> None:
    """Define `linear_q4(record)`, or `_q8` or `_int16`: every thread of a parallel region calls it."""
    emit = Emitter(module, f"linear_{form}", [POINTER], machine.num_lanes)
    product = _BlockProduct(emit, machine, shape, form)
    product.emit_codes()
    barrier(emit)
    product.emit_panels()
    emit.finish()


class _Weights(NamedTuple):
    """A piece of a panel, and its groups, as tiles read them."""

    piece: Value
    num_groups: Value
    groups: Value


class _BlockProduct:
    def __init__(self, emit: Emitter, machine: Machine, shape: CacheShape, form: str) -> None:
        self.emit, self.num_vectors = emit, vectors_a_panel(machine)
        self.panel_bytes = 4 * machine.num_lanes * self.num_vectors
        self.unpacking = Unpacking(emit, self.num_vectors, form)
        self.most = most_rows(machine)
        self.row_codes = emit_row_codes(emit.module, machine)
        numbers, is_read = range(1, self.most + 1), self.unpacking.is_unpacked
        self.tiles = {rows: emit_block_tile(emit.module, machine, shape, rows, is_read) for rows in numbers}
        few = range(1, 1 if is_read else most_strip_rows(machine) + 1)
        self.strips = {rows: emit_block_strip(emit.module, machine, shape, form, rows) for rows in few}
        self.record = emit.arguments[0]
        fields = emit.fields(self.record, BLOCK_LINEAR_FIELDS)
        self.x, self.x_stride, weights, num_inputs, self.out, self.out_stride, self.num_rows = fields[:7]
        self.num_panels, self.finish, self.bias, room, _, asked, cache = fields[7:]
        self.asks = CacheAsks(emit, shape, asked, cache)
        self.weights, self.codes = emit.pointer(weights), emit.pointer(room)
        self.num_groups = emit.build.sdiv(num_inputs, emit.number(GROUP_SIZE))
        self.num_pieces = self._parts_of(self.num_groups, GROUPS_A_PIECE)
        self.factors_offset = emit.mul(self.num_groups, GROUP_SIZE * CODE_BYTES)
        self.row_bytes = emit.add(self.factors_offset, emit.mul(self.num_pieces, FACTOR_BYTES))
        self.sums = emit.scratch(_ROWS_AT_ONCE * self.panel_bytes // 4)

    def emit_codes(self) -> None:
        """Each thread rounds its share of the rows."""
        emit = self.emit

        def one_row(row: Value, _: list[Value]) -> None:
            source = emit.at(emit.pointer(self.x), emit.mul(row, self.x_stride))
            target = emit.at(self.codes, emit.mul(row, self.row_bytes))
            emit.build.call(self.row_codes, [source, self.num_groups, target])

        emit.loop(*share(emit, self.num_rows), 1, one_row)

    def emit_panels(self) -> None:
        """Rows in parts, panel after panel, each by the thread that is free: one may lose its core for a while.

        Few rows are read in one go by each thread: of what is asked for ahead nothing is for the other.
        """
        emit, sdiv = self.emit, self.emit.build.sdiv
        num_parts = self._num_parts()
        parts = Rows(emit, emit.number(0), self.num_rows, num_parts)

        num_units = emit.mul(self.num_panels, num_parts)

        def one_unit(unit: Value, _: list[Value]) -> None:
            panel, part = sdiv(unit, num_parts), emit.build.srem(unit, num_parts)
            self.asks.begin(unit, num_units)
            self._one_panel(panel, parts.begin(part), parts.size(part))

        is_few = emit.build.icmp_signed("<", self.num_rows, emit.number(_MANY_ROWS))
        size = emit.build.select(is_few, shares_of(emit, num_units), emit.number(1))

        def one_chunk(number: Value) -> None:
            first = emit.mul(number, size)
            emit.loop(first, emit.minimum(emit.add(first, size), num_units), 1, one_unit)

        num_chunks = sdiv(emit.add(num_units, emit.build.sub(size, emit.number(1))), size)
        take_each(emit, emit.at(self.record, 8 * _COUNTER_FIELD), num_chunks, one_chunk)

    def _num_parts(self) -> Value:
        """As few as the cache allows; more where that lets each thread have as much to do as the others."""
        emit = self.emit
        fewest = self._parts_of(self.num_rows, _ROWS_AT_ONCE)
        threads = num_threads(emit)
        even = emit.mul(
            emit.build.sdiv(emit.add(fewest, emit.build.sub(threads, emit.number(1))), threads), threads
        )
        sensible = emit.maximum(emit.build.sdiv(self.num_rows, emit.number(_FEWEST_ROWS_AT_ONCE)), fewest)
        return emit.minimum(even, sensible)

    def _parts_of(self, count: Value, size: int) -> Value:
        return self.emit.build.sdiv(self.emit.add(count, size - 1), self.emit.number(size))

    def _one_panel(self, panel: Value, begin: Value, count: Value) -> None:
        """These rows by a panel."""
        emit = self.emit
        num_tiles = self._parts_of(count, self.most)
        self._clear(count)
        groups_bytes = emit.mul(self.num_groups, self.unpacking.group_bytes)
        scales = emit.at(self.weights, emit.mul(panel, emit.add(groups_bytes, self.panel_bytes)))
        groups = emit.at(scales, self.panel_bytes)

        def one_piece(piece: Value, _: list[Value]) -> None:
            first = emit.mul(piece, GROUPS_A_PIECE)
            size = emit.minimum(emit.build.sub(self.num_groups, first), GROUPS_A_PIECE)
            blocks = emit.at(groups, emit.mul(first, self.unpacking.group_bytes))
            self._add_blocks(_Weights(piece, size, blocks), Rows(emit, begin, count, num_tiles), num_tiles)

        emit.loop(0, self.num_pieces, 1, one_piece)
        self._scale(count, scales)
        self._finish(begin, count, panel)

    def _add_blocks(self, weights: "_Weights", rows: Rows, num_tiles: Value) -> None:
        """Add the products of a piece to all sums: unpacked for all tiles, or in registers for few rows."""
        if self.unpacking.is_unpacked:
            self._add_piece(weights, rows, num_tiles)
            return
        is_few = self.emit.build.icmp_signed("<=", self.num_rows, self.emit.number(max(self.strips)))
        with self.emit.build.if_else(is_few) as (then, otherwise):
            with then:
                self._add_strips(weights)
            with otherwise:
                unpacked = self.unpacking.emit_piece(weights.groups, weights.num_groups)
                self._add_piece(weights._replace(groups=unpacked), rows, num_tiles)

    def _add_strips(self, weights: "_Weights") -> None:
        """Of all rows at once."""
        emit, (codes, factors) = self.emit, self._codes_of(weights.piece)

        def one_strip(strip: Value, _: list[Value]) -> None:
            arguments = [codes, factors, self.row_bytes, weights.groups, weights.num_groups, self.sums, strip]
            self._call(self.strips, self.num_rows, [*arguments, self.asks.take()])

        emit.loop(0, emit.number(self.num_vectors // VECTORS_A_STRIP), 1, one_strip)

    def _codes_of(self, piece: Value) -> tuple[Value, Value]:
        """The first row's codes and factor."""
        emit = self.emit
        factors = emit.at(self.codes, self.factors_offset)
        return emit.at(self.codes, emit.mul(piece, PIECE_SIZE * CODE_BYTES)), emit.at(
            factors, emit.mul(piece, FACTOR_BYTES)
        )

    def _call(self, functions: dict[int, Value], num_rows: Value, arguments: list[Value]) -> None:
        def caller(function: Value):  # type: ignore[no-untyped-def]
            return lambda: self.emit.build.call(function, arguments)

        self.emit.choose(num_rows, {number: caller(function) for number, function in functions.items()})

    def _add_piece(self, weights: "_Weights", rows: Rows, num_tiles: Value) -> None:
        """Add the products of a piece of 16-bit weights to the sums of all tiles."""
        emit, (codes, factors) = self.emit, self._codes_of(weights.piece)
        begin = rows.begin(emit.number(0))

        def one_tile(tile: Value, _: list[Value]) -> None:
            row = rows.begin(tile)
            place = emit.mul(row, self.row_bytes)
            sums = emit.at(self.sums, emit.mul(emit.build.sub(row, begin), self.panel_bytes))
            arguments = [
                emit.at(codes, place),
                emit.at(factors, place),
                self.row_bytes,
                weights.groups,
                weights.num_groups,
                sums,
                self.asks.take(),
            ]
            self._call(self.tiles, rows.size(tile), arguments)

        emit.loop(0, num_tiles, 1, one_tile)

    def _clear(self, rows: Value) -> None:
        def clear(place: Value, _: list[Value]) -> None:
            self.emit.store(self.emit.zeros, self.sums, place)

        self.emit.loop(0, self.emit.mul(rows, self.panel_bytes), self.unpacking.vector_bytes, clear)

    def _scale(self, rows: Value, scales: Value) -> None:
        """Sums are in steps of their output's scale."""
        emit = self.emit
        places = [self.unpacking.vector_bytes * number for number in range(self.num_vectors)]
        factors = [emit.load(scales, place, emit.vector) for place in places]

        def one_row(row: Value, _: list[Value]) -> None:
            sums = emit.at(self.sums, emit.mul(row, self.panel_bytes))
            for place, factor in zip(places, factors, strict=True):
                emit.store(emit.build.fmul(emit.load(sums, place, emit.vector), factor), sums, place)

        emit.loop(0, rows, 1, one_row)

    def _finish(self, row: Value, rows: Value, panel: Value) -> None:
        emit, num_strips = self.emit, self.num_vectors // VECTORS_A_STRIP
        target = emit.at(emit.pointer(self.out), emit.mul(row, self.out_stride))
        strip = emit.mul(panel, num_strips)
        emit_finish(
            emit, Finished(num_strips, self.sums, rows, target, self.out_stride, strip, self.finish, self.bias)
        )
