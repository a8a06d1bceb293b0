"""Matrix products with fixed weights, for any number of rows: each result is the same whatever else is computed.

A row's sum runs over the inputs in order, in one chain of fused multiply-adds, however many rows are computed
together: so a sequence's numbers do not depend on its batch.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I64, POINTER, STORED_BYTES, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine

LINEAR_FIELDS = 11
"""x, x's row stride, weights, inputs, out, out's row stride, rows, panels, row tiles, finish, bias."""

UNROLLED = 4
"""Inputs a turn of the inner loop takes; the number of inputs must be a multiple."""

_VECTORS_A_PANEL = 2


class Finish(IntEnum):
    """What is done with a product. The bias is added first in BIAS; with SILU_MUL a panel's two halves are gates
    and what they gate.
    """

    STORE = 0
    BIAS = 1
    ADD = 2
    SILU_MUL = 3


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix (out, in) in panels of neighbouring outputs: (panels, in, outputs of a panel), zero-padded."""

    panels: torch.Tensor
    num_outputs: int

    @classmethod
    def pack(cls, matrix: torch.Tensor, machine: Machine) -> "PackedMatrix":
        """Reorder a matrix in the dtype it has."""
        width = panel_outputs(machine)
        num_outputs, num_inputs = matrix.shape
        num_panels = -(-num_outputs // width)
        padded = matrix.new_zeros(num_panels * width, num_inputs)
        padded[:num_outputs] = matrix
        return cls(padded.view(num_panels, width, num_inputs).transpose(1, 2).contiguous(), num_outputs)

    @property
    def padded_outputs(self) -> int:
        """Outputs with those of the last panel that do not exist."""
        return self.panels.shape[0] * self.panels.shape[2]


def panel_outputs(machine: Machine) -> int:
    """How many outputs a panel has."""
    return _VECTORS_A_PANEL * machine.num_lanes


def max_rows_a_tile(machine: Machine) -> int:
    """How many rows fit the registers, with room for a panel's weights and one input."""
    return (machine.num_registers - 4) // _VECTORS_A_PANEL - 2


def paired_order(num_gates: int, machine: Machine) -> torch.Tensor:
    """Row order that puts gates (first half of the rows) and what they gate side by side in each panel."""
    lanes = machine.num_lanes
    pairs = torch.arange(2 * num_gates).view(2, num_gates // lanes, lanes)
    return pairs.transpose(0, 1).reshape(-1)


def emit_linear(module: ir.Module, machine: Machine, stored: str) -> None:
    """Define `linear(record)` over weights stored so: every thread of a parallel region calls it."""
    tiles = [_emit_tile(module, machine, stored, rows) for rows in range(1, max_rows_a_tile(machine) + 1)]
    width = panel_outputs(machine)
    emit = Emitter(module, "linear", [POINTER], machine.num_lanes)
    fields = emit.fields(emit.arguments[0], LINEAR_FIELDS)
    x, x_stride, weights, num_inputs, out, out_stride, num_rows, num_panels, num_tiles, finish, bias = fields
    product = emit.scratch(len(tiles) * width)
    few, num_larger = emit.build.sdiv(num_rows, num_tiles), emit.build.srem(num_rows, num_tiles)
    panel_bytes = emit.mul(num_inputs, width * STORED_BYTES[stored])
    is_stored = emit.build.icmp_signed("==", finish, emit.number(Finish.STORE))

    def one_panel(panel: Value, _: list[Value]) -> None:
        begin = emit.at(emit.pointer(weights), emit.mul(panel, panel_bytes))

        def one_tile(tile: Value, carried: list[Value]) -> list[Value]:
            row = carried[0]
            rows = emit.add(few, emit.build.zext(emit.build.icmp_signed("<", tile, num_larger), I64))
            inputs = emit.at(emit.pointer(x), emit.mul(row, x_stride))
            target = emit.at(emit.pointer(out), emit.mul(row, out_stride))
            room, room_stride = _product_room(emit, is_stored, (target, out_stride, panel), (product, width))
            arguments = [inputs, x_stride, begin, num_inputs, room, room_stride]
            calls = {number + 1: _caller(emit, tile, arguments) for number, tile in enumerate(tiles)}
            emit.choose(rows, calls)
            _emit_finish(emit, Finished(product, rows, target, out_stride, panel, finish, bias))
            return [emit.add(row, rows)]

        emit.loop(0, num_tiles, 1, one_tile, [emit.number(0)])

    emit.loop(*emit.share(num_panels), 1, one_panel)
    emit.finish()


@dataclass(frozen=True)
class Finished:
    """A tile's product and where it goes: `rows` rows from `target` on, at the columns of `panel`."""

    product: Value
    rows: Value
    target: Value
    stride: Value
    panel: Value
    finish: Value
    bias: Value


def _caller(emit: Emitter, function: Value, arguments: list[Value]):  # type: ignore[no-untyped-def]
    return lambda: emit.build.call(function, arguments)


def _product_room(
    emit: Emitter, is_stored: Value, target: tuple[Value, Value, Value], scratch: tuple[Value, int]
) -> tuple[Value, Value]:
    """Where a tile's product goes, and its row stride: to its place at once where nothing is done with it."""
    (rows, stride, panel), (product, width) = target, scratch
    place = emit.at(rows, emit.mul(panel, 4 * width))
    select = emit.build.select
    return select(is_stored, place, product), select(is_stored, stride, emit.number(4 * width))


def _emit_tile(module: ir.Module, machine: Machine, stored: str, num_rows: int) -> Value:
    """`tile(x, x's row stride, a panel's weights, inputs, product, product's row stride)`."""
    kinds = [POINTER, I64, POINTER, I64, POINTER, I64]
    emit = Emitter(module, f"tile_{num_rows}", kinds, machine.num_lanes)
    emit.function.linkage = "internal"
    emit.function.attributes.add("noinline")
    x, x_stride, weights, num_inputs, product, stride = emit.arguments
    vector_bytes = machine.num_lanes * STORED_BYTES[stored]
    inputs = [emit.at(x, emit.mul(x_stride, row)) for row in range(num_rows)]

    def turn(first: Value, sums: list[Value]) -> list[Value]:
        for step in range(UNROLLED):
            number = emit.add(first, step)
            offset = emit.mul(number, _VECTORS_A_PANEL * vector_bytes)
            columns = [
                emit.load_numbers(weights, emit.add(offset, part * vector_bytes), stored)
                for part in range(_VECTORS_A_PANEL)
            ]
            for row, pointer in enumerate(inputs):
                value = emit.splat(emit.load(pointer, emit.mul(number, 4), F32))
                for part, column in enumerate(columns):
                    place = row * _VECTORS_A_PANEL + part
                    sums[place] = emit.fma(column, value, sums[place])
        return sums

    sums = emit.loop(0, num_inputs, UNROLLED, turn, [emit.zeros] * (num_rows * _VECTORS_A_PANEL))
    for place, value in enumerate(sums):
        row, part = divmod(place, _VECTORS_A_PANEL)
        emit.store(value, product, emit.add(emit.mul(stride, row), 4 * machine.num_lanes * part))
    emit.finish()
    return emit.function


def _emit_finish(emit: Emitter, done: Finished) -> None:
    """Bring a tile's product to its place, unless it is there."""
    lanes = emit.num_lanes
    width = _VECTORS_A_PANEL * lanes
    column_bytes = emit.mul(done.panel, 4 * width)

    def each(body, num_parts: int):  # type: ignore[no-untyped-def]
        def all_rows() -> None:
            def one_row(row: Value, _: list[Value]) -> None:
                source = emit.at(done.product, emit.mul(row, 4 * width))
                target = emit.at(done.target, emit.mul(row, done.stride))
                for part in range(num_parts):
                    body(source, target, 4 * lanes * part)

            emit.loop(0, done.rows, 1, one_row)

        return all_rows

    def add_bias(source: Value, target: Value, offset: int) -> None:
        place = emit.add(column_bytes, offset)
        bias = emit.load(emit.pointer(done.bias), place, emit.vector)
        emit.store(emit.build.fadd(emit.load(source, offset, emit.vector), bias), target, place)

    def add(source: Value, target: Value, offset: int) -> None:
        place = emit.add(column_bytes, offset)
        before = emit.load(target, place, emit.vector)
        emit.store(emit.build.fadd(before, emit.load(source, offset, emit.vector)), target, place)

    def gate(source: Value, target: Value, offset: int) -> None:
        gates, values = (emit.load(source, 4 * lanes * part, emit.vector) for part in range(2))
        ones = emit.constant(1.0)
        opened = emit.build.fdiv(gates, emit.build.fadd(ones, emit.exp(emit.build.fneg(gates))))
        emit.store(emit.build.fmul(opened, values), target, emit.mul(done.panel, 4 * lanes))

    emit.choose(
        done.finish,
        {
            Finish.BIAS: each(add_bias, _VECTORS_A_PANEL),
            Finish.ADD: each(add, _VECTORS_A_PANEL),
            Finish.SILU_MUL: each(gate, 1),
        },
    )
