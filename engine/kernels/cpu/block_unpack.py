"""Blocks of a panel as whole numbers of 16 bits, as tiles read them."""

from collections.abc import Iterator
from typing import NamedTuple

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.block_tile import NUM_PAIRS
from vllm_obs.engine.kernels.cpu.emit import I8, I16, Emitter, Value
from vllm_obs.engine.kernels.cpu.linear_tile import VECTORS_A_STRIP
from vllm_obs.engine.kernels.cpu.pair_products import scaled_codes
from vllm_obs.engine.kernels.cpu.row_codes import PIECE_SIZE

_GROUPS_AHEAD = 12
"""So far ahead weights are asked for: what the hardware guesses comes too late where one row reads them."""
_NIBBLE_BITS = 4
PAIRS_A_WORD = 4
"""A 32-bit word has eight 4-bit codes."""
NUM_WORDS = NUM_PAIRS // PAIRS_A_WORD
_HIGH_NIBBLE = 0x78007800
"""Where a nibble stands so that a product's upper bits are a sixteenth of nibble times scale, twice in a lane."""
_LINE_BYTES = 64


class Blocks(NamedTuple):
    """A group's blocks as seen from a vector: its scales and offsets lie half as far apart as its codes."""

    scales: Value
    codes: Value


class Unpacking:
    """Writes what unpacks a panel of so many vectors, in a form of BlockMatrix; `int16` is left as it is."""

    def __init__(self, emit: Emitter, num_vectors: int, form: str) -> None:
        self.emit, self.num_vectors, self.is_four_bit = emit, num_vectors, form == "q4"
        self.is_unpacked = form == "int16"
        self.pairs_kind = ir.VectorType(I16, 2 * emit.num_lanes)
        self.vector_bytes = 4 * emit.num_lanes
        self.panel_bytes = num_vectors * self.vector_bytes
        self.codes_offset = self.panel_bytes if self.is_four_bit else self.panel_bytes // 2
        self.group_bytes = self.codes_offset + NUM_PAIRS * self.panel_bytes // (4 if self.is_four_bit else 2)
        if self.is_unpacked:
            self.group_bytes = NUM_PAIRS * self.panel_bytes

    def emit_piece(self, source: Value, num_groups: Value) -> Value:
        """So many groups as int16 (groups, pairs, panel, 2)."""
        if self.is_unpacked:
            return source
        emit = self.emit
        target = emit.scratch(PIECE_SIZE // 2 * self.panel_bytes // 4)

        def one_group(group: Value, _: list[Value]) -> None:
            panel = emit.at(source, emit.mul(group, self.group_bytes))
            self.ask_ahead(panel)
            self._emit_group(Blocks(panel, panel), emit.at(target, emit.mul(group, NUM_PAIRS * self.panel_bytes)))

        emit.loop(0, num_groups, 1, one_group)
        return target

    def _emit_group(self, blocks: "Blocks", target: Value) -> None:
        emit, vectors = self.emit, range(self.num_vectors)
        parameters = [self.parameters(blocks, vector) for vector in vectors]

        def one_word(word: Value, _: list[Value]) -> None:
            room = emit.at(target, emit.mul(word, PAIRS_A_WORD * self.panel_bytes))
            for vector in vectors:
                for pair, weights in enumerate(self.weights(blocks, word, vector, parameters[vector])):
                    emit.store(weights, room, pair * self.panel_bytes + vector * self.vector_bytes)

        emit.loop(0, NUM_WORDS, 1, one_word)

    def ask_ahead(self, blocks: Value, part: Value | int = 0, num_parts: int = 1) -> None:
        """For a part of the group that comes so much later."""
        emit, size = self.emit, self.group_bytes // num_parts
        begin = blocks if num_parts == 1 else emit.at(blocks, emit.mul(part, size))
        for line in range(0, size, _LINE_BYTES):
            emit.prefetch(begin, _GROUPS_AHEAD * self.group_bytes + line)

    def at_strip(self, blocks: Value, strip: Value) -> "Blocks":
        """Where a strip's vectors are the first ones."""
        emit, strip_bytes = self.emit, VECTORS_A_STRIP * self.vector_bytes
        codes = strip_bytes if self.is_four_bit else strip_bytes // 2
        return Blocks(emit.at(blocks, emit.mul(strip, strip_bytes // 2)), emit.at(blocks, emit.mul(strip, codes)))

    def parameters(self, blocks: "Blocks", vector: int) -> list[Value]:
        """A group's scales, and offsets if there are any, of one vector's outputs."""
        found = [self._twice(blocks.scales, vector * self.vector_bytes // 2)]
        if self.is_four_bit:
            found.append(self._twice(blocks.scales, (self.panel_bytes + vector * self.vector_bytes) // 2))
        return found

    def weights(self, blocks: "Blocks", word: Value, vector: int, parameters: list[Value]) -> Iterator[Value]:
        """One vector's weights of a word's pairs."""
        emit = self.emit
        word_bytes = (self.group_bytes - self.codes_offset) // NUM_WORDS
        codes = emit.at(emit.at(blocks.codes, self.codes_offset), emit.mul(word, word_bytes))
        scales, *offsets = parameters
        if not offsets:
            yield from (scaled_codes(emit, pair, scales) for pair in self._byte_pairs(codes, vector))
            return
        for pair in self._nibble_pairs(codes, vector):
            yield emit.build.add(scaled_codes(emit, pair, scales), offsets[0])

    def _twice(self, blocks: Value, place: int) -> Value:
        """A vector's 16-bit numbers, each for both inputs of a pair."""
        emit, build = self.emit, self.emit.build
        numbers = build.zext(emit.load(blocks, place, ir.VectorType(I16, emit.num_lanes)), emit.integers)
        return build.bitcast(build.or_(numbers, build.shl(numbers, emit.every(16))), self.pairs_kind)

    def _nibble_pairs(self, codes: Value, vector: int) -> Iterator[Value]:
        """A word's codes, 2048 times each."""
        emit, build = self.emit, self.emit.build
        words = emit.load(codes, vector * self.vector_bytes, emit.integers)
        for number in range(PAIRS_A_WORD):
            up = 11 - _NIBBLE_BITS * number
            moved = build.shl(words, emit.every(up)) if up > 0 else build.lshr(words, emit.every(-up))
            yield build.bitcast(build.and_(moved, emit.every(_HIGH_NIBBLE)), self.pairs_kind)

    def _byte_pairs(self, codes: Value, vector: int) -> Iterator[Value]:
        """As many codes, 256 times each."""
        emit, build, num_codes = self.emit, self.emit.build, 2 * self.emit.num_lanes
        for pair in range(PAIRS_A_WORD):
            place = (pair * self.num_vectors + vector) * num_codes
            narrow = emit.load(codes, place, ir.VectorType(I8, num_codes))
            wide = build.zext(narrow, self.pairs_kind)
            yield build.shl(wide, ir.Constant(self.pairs_kind, [8] * num_codes))
