"""The inner loop of a product of whole numbers: some rows by a panel of 16-bit weights, for a piece of inputs."""

from typing import Any

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.cache_asks import ask_for_group
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_tile import max_rows_a_tile, vectors_a_panel
from vllm_obs.engine.kernels.cpu.pair_products import pair_adder
from vllm_obs.engine.kernels.cpu.row_codes import CODE_BYTES, GROUP_SIZE

NUM_PAIRS = GROUP_SIZE // 2
_LINE_BYTES = 64
_BYTES_AHEAD, _BYTES_NEXT = 2048, 512
"""So far ahead weights are asked for where they come from memory, into the second cache and into the first."""


def most_rows(machine: Machine) -> int:
    """How many rows by a panel fit the registers."""
    return max_rows_a_tile(machine, vectors_a_panel(machine))


def emit_block_tile(
    module: ir.Module, machine: Machine, shape: CacheShape, num_rows: int, asks_ahead: bool
) -> Value:
    """`block_tile_n(codes, factors, row stride, weights, groups, sums, chunk)`: adds n rows' products to sums.

    codes, factors: as row_codes writes them, of a piece. weights: int16 (groups, pairs, panel, 2), of that piece.
    sums: float32 (n, panel). chunk: what of the cache is asked for meanwhile, or null.

    Within a piece all is exact. Then sum += factor * product, piece after piece: for each row the same however
    many are computed together. With `asks_ahead` weights come from memory.
    """
    name = f"block_tile_{num_rows}{'_ahead' if asks_ahead else ''}"
    known = module.globals.get(name)
    if known is not None:
        return known
    emit = start_tile(module, machine, name, [POINTER, POINTER, I64, POINTER, I64, POINTER, POINTER])
    _Tile(emit, machine, shape, num_rows, asks_ahead).emit_piece()
    return emit.function


def start_tile(module: ir.Module, machine: Machine, name: str, kinds: list[Any]) -> Emitter:
    """A function of its own: inlined, its registers would be shared with what is around it."""
    emit = Emitter(module, name, kinds, machine.num_lanes)
    emit.function.linkage = "internal"
    emit.function.attributes.add("noinline")
    return emit


def row_pair(emit: Emitter, codes: Value, pair: int) -> Value:
    """A vector of one pair of a row's codes."""
    both = emit.load(codes, 2 * CODE_BYTES * pair, I32)
    return emit.build.bitcast(emit.splat(both), ir.VectorType(I16, 2 * emit.num_lanes))


class _Tile:
    def __init__(
        self, emit: Emitter, machine: Machine, shape: CacheShape, num_rows: int, asks_ahead: bool
    ) -> None:
        self.shape, self.asks_ahead = shape, asks_ahead
        self.emit, self.rows, self.vectors = emit, range(num_rows), range(vectors_a_panel(machine))
        self.add_pairs = pair_adder(machine)
        self.codes_kind = ir.VectorType(I16, 2 * emit.num_lanes)
        self.vector_bytes = 4 * machine.num_lanes
        self.panel_bytes = self.vector_bytes * len(self.vectors)
        codes, factors, stride, self.weights, self.num_groups, self.sums, self.chunk = emit.arguments
        self.codes = [emit.at(codes, emit.mul(stride, row)) for row in self.rows]
        self.factors = [emit.at(factors, emit.mul(stride, row)) for row in self.rows]

    def emit_piece(self) -> None:
        """The whole function."""
        emit = self.emit
        none = [emit.every(0)] * (len(self.rows) * len(self.vectors))
        products = emit.loop(0, self.num_groups, 1, self._add_group, none)
        for row in self.rows:
            self._add(row, products[row * len(self.vectors) :])
        emit.finish()

    def _add_group(self, group: Value, products: list[Value]) -> list[Value]:
        """A group's pairs without a loop: nothing that would have to be counted."""
        emit = self.emit
        ask_for_group(emit, self.shape, self.chunk, group)
        weights = emit.at(self.weights, emit.mul(group, NUM_PAIRS * self.panel_bytes))
        codes = [emit.at(each, emit.mul(group, GROUP_SIZE * CODE_BYTES)) for each in self.codes]
        for pair in range(NUM_PAIRS):
            for line in range(0, self.panel_bytes if self.asks_ahead else 0, _LINE_BYTES):
                place = pair * self.panel_bytes + line
                emit.prefetch(weights, _BYTES_AHEAD + place)
                emit.prefetch(weights, _BYTES_NEXT + place, is_next=True)
            columns = [emit.load(weights, self._at(pair, number), self.codes_kind) for number in self.vectors]
            for row in self.rows:
                value = row_pair(emit, codes[row], pair)
                for number, column in enumerate(columns):
                    place = row * len(columns) + number
                    products[place] = self.add_pairs(emit, products[place], column, value)
        return products

    def _add(self, row: int, products: list[Value]) -> None:
        """Scale a row's products and add them to the sums."""
        emit = self.emit
        factor = emit.splat(emit.load(self.factors[row], 0, F32))
        for number in self.vectors:
            product, target = emit.build.sitofp(products[number], emit.vector), self._at(row, number)
            emit.store(emit.fma(product, factor, emit.load(self.sums, target, emit.vector)), self.sums, target)

    def _at(self, line: int, number: int) -> int:
        return line * self.panel_bytes + number * self.vector_bytes
