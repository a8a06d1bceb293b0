"""The inner loop of a matrix product: some rows by one panel of weights, with all sums in registers."""

from dataclasses import dataclass

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.stored_numbers import STORED_BYTES, load_numbers

UNROLLED = 4
"""Inputs a turn of the loop takes; the number of inputs must be a multiple."""


VECTORS_A_STRIP = 2
"""A strip is how weights are stored, for all inputs one after the other, and what gates and their values share."""

_MOST_ROWS = 12
_LINE_BYTES = 64
_BYTES_AHEAD = 4096
"""So far ahead weights are asked for where they come from memory."""


def vectors_a_panel(machine: Machine) -> int:
    """Vectors of neighbouring strips that are computed together once they are float32: many, so that an input is
    loaded for many outputs at once.
    """
    return machine.num_registers // 8


def panel_outputs(machine: Machine) -> int:
    """How many outputs a panel has."""
    return vectors_a_panel(machine) * machine.num_lanes


def max_rows_a_tile(machine: Machine, num_vectors: int) -> int:
    """How many rows by so many vectors fit the registers, with room for the weights and one input."""
    return min(_MOST_ROWS, (machine.num_registers - num_vectors - 1) // num_vectors)


@dataclass(frozen=True)
class TileShape:
    """`num_rows` rows by weights that have `num_vectors` vectors of outputs for each input, in the given form.

    With `adds` the sums go on from what is in the product.
    """

    num_rows: int
    num_vectors: int
    stored: str
    adds: bool

    @property
    def name(self) -> str:
        """The function's name."""
        return f"tile_{self.num_rows}_{self.num_vectors}_{self.stored}{'_adds' if self.adds else ''}"


def emit_tile(module: ir.Module, machine: Machine, shape: TileShape) -> Value:
    """`tile(x, x's row stride, weights, inputs, product)`: product is (rows, vectors), one after the other."""
    emit = Emitter(module, shape.name, [POINTER, I64, POINTER, I64, POINTER], machine.num_lanes)
    emit.function.linkage = "internal"
    emit.function.attributes.add("noinline")
    x, x_stride, weights, num_inputs, product = emit.arguments
    vector_bytes = machine.num_lanes * STORED_BYTES[shape.stored]
    inputs = [emit.at(x, emit.mul(x_stride, row)) for row in range(shape.num_rows)]
    places = [4 * machine.num_lanes * place for place in range(shape.num_rows * shape.num_vectors)]
    vectors = range(shape.num_vectors)

    def turn(first: Value, sums: list[Value]) -> list[Value]:
        for step in range(UNROLLED):
            number = emit.add(first, step)
            line = emit.at(weights, emit.mul(number, shape.num_vectors * vector_bytes))
            if not shape.adds:
                for begin in range(0, shape.num_vectors * vector_bytes, _LINE_BYTES):
                    emit.prefetch(line, _BYTES_AHEAD + begin, is_next=True)
            columns = [load_numbers(emit, line, part * vector_bytes, shape.stored) for part in vectors]
            for row, pointer in enumerate(inputs):
                value = emit.splat(emit.load(pointer, emit.mul(number, 4), F32))
                for part, column in enumerate(columns):
                    place = row * shape.num_vectors + part
                    sums[place] = emit.fma(column, value, sums[place])
        return sums

    before = [emit.load(product, place, emit.vector) if shape.adds else emit.zeros for place in places]
    for place, value in zip(places, emit.loop(0, num_inputs, UNROLLED, turn, before), strict=True):
        emit.store(value, product, place)
    emit.finish()
    return emit.function
