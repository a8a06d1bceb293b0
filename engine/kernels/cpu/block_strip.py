"""A product of whole numbers for few rows: a strip's blocks are unpacked in registers and used at once."""

from collections.abc import Iterable

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.block_tile import row_pair, start_tile
from vllm_obs.engine.kernels.cpu.block_unpack import NUM_WORDS, PAIRS_A_WORD, Unpacking
from vllm_obs.engine.kernels.cpu.cache_asks import ask_for_group
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import F32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_tile import VECTORS_A_STRIP, vectors_a_panel
from vllm_obs.engine.kernels.cpu.pair_products import pair_adder
from vllm_obs.engine.kernels.cpu.row_codes import CODE_BYTES, GROUP_SIZE

_MOST_ROWS = 8
_OTHER_REGISTERS = 5 * VECTORS_A_STRIP
"""Weights, words, scales and offsets of a strip, a mask and an input."""


def most_strip_rows(machine: Machine) -> int:
    """How many rows by a strip fit the registers."""
    return min(_MOST_ROWS, (machine.num_registers - _OTHER_REGISTERS) // VECTORS_A_STRIP)


def emit_block_strip(module: ir.Module, machine: Machine, shape: CacheShape, form: str, num_rows: int) -> Value:
    """`block_strip_form_n(codes, factors, row stride, blocks, groups, sums, strip, chunk)`: a tile of one strip.

    blocks: of a piece of the whole panel. sums: float32 (n, panel). chunk: as a block tile has it.
    """
    name = f"block_strip_{form}_{num_rows}"
    known = module.globals.get(name)
    if known is not None:
        return known
    emit = start_tile(module, machine, name, [POINTER, POINTER, I64, POINTER, I64, POINTER, I64, POINTER])
    _Strip(emit, machine, shape, form, num_rows).emit_piece()
    return emit.function


class _Strip:
    def __init__(self, emit: Emitter, machine: Machine, shape: CacheShape, form: str, num_rows: int) -> None:
        self.shape = shape
        self.emit, self.rows, self.vectors = emit, range(num_rows), range(VECTORS_A_STRIP)
        self.add_pairs = pair_adder(machine)
        self.unpacking = Unpacking(emit, vectors_a_panel(machine), form)
        codes, factors, stride, self.blocks, self.num_groups, sums, self.strip, self.chunk = emit.arguments
        self.codes = [emit.at(codes, emit.mul(stride, row)) for row in self.rows]
        self.factors = [emit.at(factors, emit.mul(stride, row)) for row in self.rows]
        self.sums = emit.at(sums, emit.mul(self.strip, VECTORS_A_STRIP * self.unpacking.vector_bytes))

    def emit_piece(self) -> None:
        """The whole function."""
        emit = self.emit
        none = [emit.every(0)] * (len(self.rows) * len(self.vectors))
        products = emit.loop(0, self.num_groups, 1, self._add_group, none)
        for row in self.rows:
            factor = emit.splat(emit.load(self.factors[row], 0, F32))
            for vector in self.vectors:
                product = emit.build.sitofp(products[row * len(self.vectors) + vector], emit.vector)
                place = row * self.unpacking.panel_bytes + vector * self.unpacking.vector_bytes
                before = emit.load(self.sums, place, emit.vector)
                emit.store(emit.fma(product, factor, before), self.sums, place)
        emit.finish()

    def _add_group(self, group: Value, products: list[Value]) -> list[Value]:
        emit = self.emit
        ask_for_group(emit, self.shape, self.chunk, group)
        panel = emit.at(self.blocks, emit.mul(group, self.unpacking.group_bytes))
        self.unpacking.ask_ahead(panel, self.strip, self.unpacking.num_vectors // VECTORS_A_STRIP)
        blocks = self.unpacking.at_strip(panel, self.strip)
        parameters = [self.unpacking.parameters(blocks, vector) for vector in self.vectors]
        codes = [emit.at(each, emit.mul(group, GROUP_SIZE * CODE_BYTES)) for each in self.codes]

        def one_word(word: Value, sums: list[Value]) -> list[Value]:
            columns = [self.unpacking.weights(blocks, word, each, parameters[each]) for each in self.vectors]
            place = emit.mul(word, 2 * CODE_BYTES * PAIRS_A_WORD)
            pairs = zip(*columns, strict=True)
            return self._add_pairs(pairs, [emit.at(each, place) for each in codes], sums)

        return emit.loop(0, NUM_WORDS, 1, one_word, products)

    def _add_pairs(self, pairs: Iterable[tuple[Value, ...]], codes: list[Value], sums: list[Value]) -> list[Value]:
        for pair, columns in enumerate(pairs):
            for row in self.rows:
                value = row_pair(self.emit, codes[row], pair)
                for vector, column in enumerate(columns):
                    place = row * len(columns) + vector
                    sums[place] = self.add_pairs(self.emit, sums[place], column, value)
        return sums
