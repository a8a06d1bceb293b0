"""Matrix products with fixed weights, for any number of rows: each result is the same whatever else is computed.

A row's sum runs over the inputs in order, in one chain of fused multiply-adds, however many rows are computed
together: so a sequence's numbers do not depend on its batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_finish import Finished, emit_finish
from vllm_obs.engine.kernels.cpu.linear_rows import Rows
from vllm_obs.engine.kernels.cpu.linear_tile import (
    VECTORS_A_STRIP,
    TileShape,
    emit_tile,
    max_rows_a_tile,
    panel_outputs,
    vectors_a_panel,
)
from vllm_obs.engine.kernels.cpu.stored_numbers import STORED_BYTES, load_numbers
from vllm_obs.engine.kernels.cpu.worksharing import share

LINEAR_FIELDS = 10
"""x, x's row stride, weights, inputs, out, out's row stride, rows, strips, finish, bias."""

_MANY_ROWS = 25
"""From so many rows on it pays to turn weights into float32 once for all of them."""
_TILES_AT_ONCE = 24
_INPUTS_AT_ONCE = 128
"""A panel's weights in float32 for so many inputs stay in the first cache while all tiles read them."""


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix (out, in) in strips of neighbouring outputs: (strips, in, outputs of a strip), zero-padded."""

    strips: torch.Tensor
    num_outputs: int

    @classmethod
    def pack(cls, matrix: torch.Tensor, machine: Machine) -> "PackedMatrix":
        """Reorder a matrix in the dtype it has; whole panels of strips."""
        width, strip = panel_outputs(machine), VECTORS_A_STRIP * machine.num_lanes
        num_outputs, num_inputs = matrix.shape
        padded = matrix.new_zeros(-(-num_outputs // width) * width, num_inputs)
        padded[:num_outputs] = matrix
        return cls(padded.view(-1, strip, num_inputs).transpose(1, 2).contiguous(), num_outputs)

    @property
    def padded_outputs(self) -> int:
        """Outputs with those of the last strips that do not exist."""
        return self.strips.shape[0] * self.strips.shape[2]

    @property
    def num_inputs(self) -> int:
        """Inputs."""
        return self.strips.shape[1]

    @property
    def num_bytes(self) -> int:
        """What a product reads of it."""
        return self.strips.nbytes


def paired_order(num_gates: int, machine: Machine) -> torch.Tensor:
    """Row order that puts gates (first half of the rows) and what they gate side by side in each strip."""
    lanes = machine.num_lanes
    pairs = torch.arange(2 * num_gates).view(2, num_gates // lanes, lanes)
    return pairs.transpose(0, 1).reshape(-1)


def emit_linear(module: ir.Module, machine: Machine, stored: str) -> None:
    """Define `linear(record)` over weights stored so: every thread of a parallel region calls it."""
    emit = Emitter(module, "linear", [POINTER], machine.num_lanes)
    product = _Product(emit, machine, stored)
    is_many = emit.build.icmp_signed(">=", product.num_rows, emit.number(_MANY_ROWS))
    with emit.build.if_else(is_many) as (then, otherwise):
        with then:
            product.emit_many()
        with otherwise:
            product.emit_few()
    emit.finish()


class _Product:
    """Writes the two ways of doing it: weights as they are stored, or in float32 a piece at a time."""

    def __init__(self, emit: Emitter, machine: Machine, stored: str) -> None:
        self.emit, self.stored = emit, stored
        self.num_vectors = vectors_a_panel(machine)
        self.num_strips = self.num_vectors // VECTORS_A_STRIP
        self.width = panel_outputs(machine)
        self.most_few, few = self._tiles(machine, VECTORS_A_STRIP, stored, adds=False)
        self.most_many, many = self._tiles(machine, self.num_vectors, "float32", adds=True)
        self.tiles, self.adding_tiles = few, many
        fields = emit.fields(emit.arguments[0], LINEAR_FIELDS)
        self.x, self.x_stride, weights, self.num_inputs, self.out, self.out_stride, self.num_rows = fields[:7]
        self.strips, self.finish, self.bias = fields[7:]
        self.weights = emit.pointer(weights)
        self.number_bytes = STORED_BYTES[stored]
        self.room = emit.scratch(_TILES_AT_ONCE * self.most_many * self.width)
        self.widened = emit.scratch(_INPUTS_AT_ONCE * self.width)

    def _tiles(self, machine: Machine, num_vectors: int, stored: str, adds: bool) -> tuple[int, dict[int, Value]]:
        """The most rows of a tile, and the tile of each number of rows."""
        most = max_rows_a_tile(machine, num_vectors)
        shapes = {rows: TileShape(rows, num_vectors, stored, adds) for rows in range(1, most + 1)}
        return most, {rows: emit_tile(self.emit.module, machine, shape) for rows, shape in shapes.items()}

    def emit_few(self) -> None:
        """Each tile reads a strip of weights anew: from memory the first time, from cache the others."""
        emit = self.emit
        num_tiles = emit.build.sdiv(emit.add(self.num_rows, self.most_few - 1), emit.number(self.most_few))
        rows = Rows(emit, emit.number(0), self.num_rows, num_tiles)

        def some_tiles(strip: Value, first: Value, last: Value) -> None:
            begin = self._strip(strip)

            def one_tile(tile: Value, _: list[Value]) -> None:
                row, count = rows.begin(tile), rows.size(tile)
                self._call(
                    self.tiles, count, [self._inputs(row), self.x_stride, begin, self.num_inputs, self.room]
                )
                self._finish(1, row, count, strip)

            emit.loop(first, last, 1, one_tile)

        self._share(self.strips, num_tiles, some_tiles)

    def emit_many(self) -> None:
        """Rows in parts whose sums stay in cache, inputs in pieces; the order of each sum is the same."""
        emit = self.emit
        most = _TILES_AT_ONCE * self.most_many
        num_parts = emit.build.sdiv(emit.add(self.num_rows, most - 1), emit.number(most))
        parts = Rows(emit, emit.number(0), self.num_rows, num_parts)
        num_panels = emit.build.sdiv(self.strips, emit.number(self.num_strips))

        def one_part(part: Value, _: list[Value]) -> None:
            size = parts.size(part)
            num_tiles = emit.build.sdiv(emit.add(size, self.most_many - 1), emit.number(self.most_many))
            rows = Rows(emit, parts.begin(part), size, num_tiles)

            def some_tiles(panel: Value, first: Value, last: Value) -> None:
                begin = rows.begin(first)
                count = emit.build.sub(rows.begin(last), begin)
                self._clear(count)

                def one_piece(number: Value, _: list[Value]) -> None:
                    self._add_piece(panel, number, rows, (first, last))

                emit.loop(0, self.num_inputs, _INPUTS_AT_ONCE, one_piece)
                self._finish(self.num_strips, begin, count, emit.mul(panel, self.num_strips))

            self._share(num_panels, num_tiles, some_tiles)

        emit.loop(0, num_parts, 1, one_part)

    def _share(self, count: Value, num_tiles: Value, body: Callable[[Value, Value, Value], None]) -> None:
        """`body(number, first tile, end of tiles)` for this thread's share of the tiles of `count` things."""
        emit, sdiv = self.emit, self.emit.build.sdiv
        begin, end = share(emit, emit.mul(count, num_tiles))
        last = sdiv(emit.add(end, emit.build.sub(num_tiles, emit.number(1))), num_tiles)

        def one(number: Value, _: list[Value]) -> None:
            before = emit.mul(number, num_tiles)
            first = emit.maximum(emit.build.sub(begin, before), 0)
            body(number, first, emit.minimum(emit.build.sub(end, before), num_tiles))

        emit.loop(sdiv(begin, num_tiles), last, 1, one)

    def _add_piece(self, panel: Value, first: Value, rows: Rows, tiles: tuple[Value, Value]) -> None:
        """Add the products of some inputs, from `first` on, to the sums of these tiles."""
        emit = self.emit
        count = emit.minimum(emit.build.sub(self.num_inputs, first), _INPUTS_AT_ONCE)
        self._widen(panel, first, count)
        stride, begin = 4 * self.width, rows.begin(tiles[0])

        def one_tile(tile: Value, _: list[Value]) -> None:
            row = rows.begin(tile)
            inputs = emit.at(self._inputs(row), emit.mul(first, 4))
            sums = emit.at(self.room, emit.mul(emit.build.sub(row, begin), stride))
            arguments = [inputs, self.x_stride, self.widened, count, sums]
            self._call(self.adding_tiles, rows.size(tile), arguments)

        emit.loop(*tiles, 1, one_tile)

    def _widen(self, panel: Value, first: Value, count: Value) -> None:
        """Turn a panel's weights for some inputs into float32, strips side by side."""
        emit, strip_outputs = self.emit, VECTORS_A_STRIP * self.emit.num_lanes
        begin = emit.mul(first, strip_outputs * self.number_bytes)
        strips = [
            self._strip(emit.add(emit.mul(panel, self.num_strips), number)) for number in range(self.num_strips)
        ]
        sources = [emit.at(strip, begin) for strip in strips]

        def one_input(number: Value, _: list[Value]) -> None:
            line = emit.mul(number, strip_outputs * self.number_bytes)
            target = emit.at(self.widened, emit.mul(number, 4 * self.width))
            for place in range(self.num_vectors):
                strip, part = divmod(place, VECTORS_A_STRIP)
                offset = emit.add(line, emit.num_lanes * self.number_bytes * part)
                values = load_numbers(emit, sources[strip], offset, self.stored)
                emit.store(values, target, 4 * emit.num_lanes * place)

        emit.loop(0, count, 1, one_input)

    def _call(self, tiles: dict[int, Value], rows: Value, arguments: list[Value]) -> None:
        def caller(function: Value) -> Callable[[], None]:
            return lambda: self.emit.build.call(function, arguments)

        self.emit.choose(rows, {number: caller(tile) for number, tile in tiles.items()})

    def _strip(self, strip: Value) -> Value:
        emit, strip_bytes = self.emit, VECTORS_A_STRIP * self.emit.num_lanes * self.number_bytes
        return emit.at(self.weights, emit.mul(emit.mul(self.num_inputs, strip), strip_bytes))

    def _inputs(self, row: Value) -> Value:
        return self.emit.at(self.emit.pointer(self.x), self.emit.mul(row, self.x_stride))

    def _clear(self, rows: Value) -> None:
        def clear(place: Value, _: list[Value]) -> None:
            self.emit.store(self.emit.zeros, self.room, self.emit.mul(place, 4))

        self.emit.loop(0, self.emit.mul(rows, self.width), self.emit.num_lanes, clear)

    def _finish(self, num_strips: int, row: Value, rows: Value, strip: Value) -> None:
        target = self.emit.at(self.emit.pointer(self.out), self.emit.mul(row, self.out_stride))
        done = Finished(num_strips, self.room, rows, target, self.out_stride, strip, self.finish, self.bias)
        emit_finish(self.emit, done)
