"""Matrix products with a GGUF file's own blocks: rows are rounded to 16 bits, and sums are of whole numbers.

A group of a panel is unpacked from 4 or 8 bits to 16 in the first cache, once for many rows. A row's result does
not depend on how many rows are computed together.
"""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.block_tile import NUM_PAIRS, emit_block_tile, most_rows
from vllm_obs.engine.kernels.cpu.emit import I8, I16, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_finish import Finished, emit_finish
from vllm_obs.engine.kernels.cpu.linear_rows import Rows
from vllm_obs.engine.kernels.cpu.linear_tile import VECTORS_A_STRIP, vectors_a_panel
from vllm_obs.engine.kernels.cpu.row_codes import CODE_BYTES, FACTOR_BYTES, GROUP_SIZE, emit_row_codes

BLOCK_LINEAR_FIELDS = 12
"""x, x's row stride, weights, inputs, out, out's row stride, rows, panels, finish, bias, room for rows' codes, and
the counter that threads take panels from (0 before the call).
"""

_COUNTER_FIELD = 11
_MANY_ROWS = 8
"""From so many rows on the sums take longer than reading."""


_TILES_AT_ONCE = 8
"""The sums of so many tiles stay in the first cache beside a panel's codes for a group."""
_GROUPS_AHEAD = 4
"""So far ahead weights are asked for: what the hardware guesses comes too late where one row reads them."""
_NIBBLE_BITS, _NIBBLES_A_WORD = 4, 4
_LINE_BYTES = 64


def code_row_bytes(num_inputs: int) -> int:
    """Bytes of a row in the room for codes."""
    return num_inputs * CODE_BYTES + num_inputs // GROUP_SIZE * FACTOR_BYTES


def emit_block_linear(module: ir.Module, machine: Machine, form: str) -> None:
    """Define `linear_q4(record)` or `linear_q8(record)`: every thread of a parallel region calls it."""
    emit = Emitter(module, f"linear_{form}", [POINTER], machine.num_lanes)
    product = _BlockProduct(emit, machine, form)
    product.emit_codes()
    emit.barrier()
    product.emit_panels()
    emit.finish()


class _BlockProduct:
    def __init__(self, emit: Emitter, machine: Machine, form: str) -> None:
        self.emit, self.is_four_bit = emit, form == "q4"
        self.num_vectors = vectors_a_panel(machine)
        self.vector_bytes = 4 * machine.num_lanes
        self.panel_bytes = self.num_vectors * self.vector_bytes
        self.most = most_rows(machine)
        self.row_codes = emit_row_codes(emit.module, machine)
        self.tiles = {rows: emit_block_tile(emit.module, machine, rows) for rows in range(1, self.most + 1)}
        self.record = emit.arguments[0]
        fields = emit.fields(self.record, _COUNTER_FIELD)
        self.x, self.x_stride, weights, num_inputs, self.out, self.out_stride, self.num_rows = fields[:7]
        self.num_panels, self.finish, self.bias, room = fields[7:]
        self.weights, self.codes = emit.pointer(weights), emit.pointer(room)
        self.num_groups = emit.build.sdiv(num_inputs, emit.number(GROUP_SIZE))
        self.row_bytes = emit.mul(self.num_groups, GROUP_SIZE * CODE_BYTES + FACTOR_BYTES)
        scale_bytes = self.panel_bytes // 2
        self.codes_offset = 2 * scale_bytes if self.is_four_bit else scale_bytes
        self.group_bytes = self.codes_offset + NUM_PAIRS * self.panel_bytes // (4 if self.is_four_bit else 2)
        width = self.panel_bytes // 4
        self.sums = emit.scratch(_TILES_AT_ONCE * self.most * width)
        self.unpacked = emit.scratch(NUM_PAIRS * width)
        self.scales = emit.scratch(2 * width)

    def emit_codes(self) -> None:
        """Each thread rounds its share of the rows."""
        emit = self.emit

        def one_row(row: Value, _: list[Value]) -> None:
            source = emit.at(emit.pointer(self.x), emit.mul(row, self.x_stride))
            target = emit.at(self.codes, emit.mul(row, self.row_bytes))
            emit.build.call(self.row_codes, [source, self.num_groups, target])

        emit.loop(*emit.share(self.num_rows), 1, one_row)

    def emit_panels(self) -> None:
        """Rows in parts, panel after panel, each by the thread that is free: one may lose its core for a while.

        Few rows are read in one go by each thread: of what is asked for ahead nothing is for the other.
        """
        emit, sdiv = self.emit, self.emit.build.sdiv
        most = _TILES_AT_ONCE * self.most
        num_parts = sdiv(emit.add(self.num_rows, most - 1), emit.number(most))
        parts = Rows(emit, emit.number(0), self.num_rows, num_parts)

        def one_unit(unit: Value, _: list[Value]) -> None:
            panel, part = sdiv(unit, num_parts), emit.build.srem(unit, num_parts)
            begin, count = parts.begin(part), parts.size(part)
            num_tiles = sdiv(emit.add(count, self.most - 1), emit.number(self.most))
            self._clear(count)
            groups = emit.at(self.weights, emit.mul(emit.mul(panel, self.num_groups), self.group_bytes))

            def one_group(group: Value, _: list[Value]) -> None:
                self._unpack(emit.at(groups, emit.mul(group, self.group_bytes)))
                self._add_group(group, Rows(emit, begin, count, num_tiles), num_tiles)

            emit.loop(0, self.num_groups, 1, one_group)
            self._finish(begin, count, panel)

        num_units = emit.mul(self.num_panels, num_parts)
        is_few = emit.build.icmp_signed("<", self.num_rows, emit.number(_MANY_ROWS))
        size = emit.build.select(is_few, emit.shares_of(num_units), emit.number(1))

        def one_chunk(number: Value) -> None:
            first = emit.mul(number, size)
            emit.loop(first, emit.minimum(emit.add(first, size), num_units), 1, one_unit)

        num_chunks = sdiv(emit.add(num_units, emit.build.sub(size, emit.number(1))), size)
        emit.take_each(emit.at(self.record, 8 * _COUNTER_FIELD), num_chunks, one_chunk)

    def _add_group(self, group: Value, rows: Rows, num_tiles: Value) -> None:
        """Add the products of the group that is unpacked to the sums of all tiles."""
        emit = self.emit
        codes = emit.at(self.codes, emit.mul(group, GROUP_SIZE * CODE_BYTES))
        factors = emit.at(self.codes, emit.mul(self.num_groups, GROUP_SIZE * CODE_BYTES))
        factors = emit.at(factors, emit.mul(group, FACTOR_BYTES))
        begin = rows.begin(emit.number(0))

        def one_tile(tile: Value, _: list[Value]) -> None:
            row = rows.begin(tile)
            place = emit.mul(row, self.row_bytes)
            arguments = [
                emit.at(codes, place),
                emit.at(factors, place),
                self.row_bytes,
                self.unpacked,
                self.scales,
                emit.at(self.sums, emit.mul(emit.build.sub(row, begin), self.panel_bytes)),
            ]

            def caller(function: Value):  # type: ignore[no-untyped-def]
                return lambda: emit.build.call(function, arguments)

            emit.choose(rows.size(tile), {number: caller(tile) for number, tile in self.tiles.items()})

        emit.loop(0, num_tiles, 1, one_tile)

    def _unpack(self, source: Value) -> None:
        """A group's codes to 16 bits, its scales and offsets to float32."""
        emit = self.emit
        for line in range(0, self.group_bytes, _LINE_BYTES):
            emit.prefetch(source, _GROUPS_AHEAD * self.group_bytes + line)
        for vector in range(self.num_vectors):
            at = self.vector_bytes * vector
            emit.store(emit.load_numbers(source, at // 2, "float16"), self.scales, at)
            offset = emit.zeros
            if self.is_four_bit:
                offset = emit.load_numbers(source, (self.panel_bytes + at) // 2, "float16")
            emit.store(offset, self.scales, self.panel_bytes + at)
        codes = emit.at(source, self.codes_offset)
        if self.is_four_bit:
            self._unpack_nibbles(codes)
        else:
            self._unpack_bytes(codes)

    def _unpack_nibbles(self, codes: Value) -> None:
        emit, build = self.emit, self.emit.build
        for word in range(NUM_PAIRS // _NIBBLES_A_WORD):
            for vector in range(self.num_vectors):
                words = emit.load(codes, (word * self.num_vectors + vector) * self.vector_bytes, emit.integers)
                for number in range(_NIBBLES_A_WORD):
                    pair = build.and_(build.lshr(words, emit.every(_NIBBLE_BITS * number)), emit.every(0x000F000F))
                    place = (word * _NIBBLES_A_WORD + number) * self.num_vectors + vector
                    emit.store(pair, self.unpacked, place * self.vector_bytes)

    def _unpack_bytes(self, codes: Value) -> None:
        emit, num_codes = self.emit, 2 * self.emit.num_lanes
        for place in range(NUM_PAIRS * self.num_vectors):
            narrow = emit.load(codes, place * num_codes, ir.VectorType(I8, num_codes))
            wide = emit.build.sext(narrow, ir.VectorType(I16, num_codes))
            emit.store(wide, self.unpacked, place * self.vector_bytes)

    def _clear(self, rows: Value) -> None:
        def clear(place: Value, _: list[Value]) -> None:
            self.emit.store(self.emit.zeros, self.sums, place)

        self.emit.loop(0, self.emit.mul(rows, self.panel_bytes), self.vector_bytes, clear)

    def _finish(self, row: Value, rows: Value, panel: Value) -> None:
        emit, num_strips = self.emit, self.num_vectors // VECTORS_A_STRIP
        target = emit.at(emit.pointer(self.out), emit.mul(row, self.out_stride))
        strip = emit.mul(panel, num_strips)
        emit_finish(
            emit, Finished(num_strips, self.sums, rows, target, self.out_stride, strip, self.finish, self.bias)
        )
