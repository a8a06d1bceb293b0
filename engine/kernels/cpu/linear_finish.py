"""What is done with a product on the way to its place."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from vllm_obs.engine.kernels.cpu.emit import Emitter, Value
from vllm_obs.engine.kernels.cpu.exponential import exp
from vllm_obs.engine.kernels.cpu.linear_tile import VECTORS_A_STRIP


class Finish(IntEnum):
    """Store it, with a bias, or added to what is there; SILU_MUL: a strip's first vector gates the second."""

    STORE = 0
    BIAS = 1
    ADD = 2
    SILU_MUL = 3


@dataclass(frozen=True)
class Finished:
    """A product of `num_strips` strips a row, and where it goes.

    `rows` rows from `target` on, `stride` bytes apart, at the columns from the strip `strip` on.
    """

    num_strips: int
    product: Value
    rows: Value
    target: Value
    stride: Value
    strip: Value
    finish: Value
    bias: Value


def emit_finish(emit: Emitter, done: Finished) -> None:
    """Bring a product to its place."""
    lanes, vector = emit.num_lanes, emit.vector
    strip_bytes = 4 * VECTORS_A_STRIP * lanes
    first_column = emit.mul(done.strip, strip_bytes)

    def each_vector(change: Callable[[Value, Value, Value], Value]) -> Callable[[Value, Value], None]:
        def one_row(source: Value, target: Value) -> None:
            for part in range(done.num_strips * VECTORS_A_STRIP):
                place = emit.add(first_column, 4 * lanes * part)
                value = emit.load(source, 4 * lanes * part, vector)
                emit.store(change(value, target, place), target, place)

        return one_row

    def stored(value: Value, target: Value, place: Value) -> Value:
        return value

    def biased(value: Value, target: Value, place: Value) -> Value:
        return emit.build.fadd(value, emit.load(emit.pointer(done.bias), place, vector))

    def added(value: Value, target: Value, place: Value) -> Value:
        return emit.build.fadd(emit.load(target, place, vector), value)

    def gated(source: Value, target: Value) -> None:
        for number in range(done.num_strips):
            gates = emit.load(source, strip_bytes * number, vector)
            values = emit.load(source, strip_bytes * number + 4 * lanes, vector)
            opened = emit.build.fdiv(gates, emit.build.fadd(emit.constant(1.0), exp(emit, emit.build.fneg(gates))))
            column = emit.mul(emit.add(done.strip, number), 4 * lanes)
            emit.store(emit.build.fmul(opened, values), target, column)

    def rows(one_row: Callable[[Value, Value], None]) -> Callable[[], None]:
        def one(row: Value, _: list[Value]) -> None:
            source = emit.at(done.product, emit.mul(row, done.num_strips * strip_bytes))
            one_row(source, emit.at(done.target, emit.mul(row, done.stride)))

        def all_rows() -> None:
            emit.loop(0, done.rows, 1, one)

        return all_rows

    emit.choose(
        done.finish,
        {
            Finish.STORE: rows(each_vector(stored)),
            Finish.BIAS: rows(each_vector(biased)),
            Finish.ADD: rows(each_vector(added)),
            Finish.SILU_MUL: rows(gated),
        },
    )
