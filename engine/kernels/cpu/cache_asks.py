"""Blocks of the cache that attention reads next are asked for while products are computed.

Products of more than a few rows leave memory idle for most of their time, and attention over long contexts waits
for it. What is asked for comes through the second cache and waits in the third.
"""

from collections.abc import Sequence

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.row_codes import GROUPS_A_PIECE

ASK_FIELDS = 3
"""What a product asks for: the address of block numbers (int64), and of their chunks the first and the end."""
_LINE_BYTES = 64
_LINES_A_GROUP = 9
"""While the products of a group of inputs are added so many lines can come from memory, and its weights too."""


def chunks_a_block(shape: CacheShape) -> int:
    """In how many parts a block is asked for, each during the products of some rows with a piece of a panel."""
    return -(-shape.block_bytes // (GROUPS_A_PIECE * _LINES_A_GROUP * _LINE_BYTES))


def _group_bytes(shape: CacheShape) -> int:
    """What of a chunk is asked for during a group."""
    return -(-shape.block_bytes // (chunks_a_block(shape) * GROUPS_A_PIECE))


class CacheAsks:
    """What a product asks for, as its function sees it: `record` is an address of ASK_FIELDS int64, or 0."""

    def __init__(self, emit: Emitter, shape: CacheShape, record: Value, cache: Value) -> None:
        self._emit, self._shape = emit, shape
        self._cache = emit.pointer(cache)
        is_any = emit.build.icmp_signed("!=", record, emit.number(0))
        nothing = [emit.number(0)] * ASK_FIELDS
        fields = emit.changed_where(is_any, lambda: emit.fields(emit.pointer(record), ASK_FIELDS), nothing)
        numbers, self._first, self._end = fields
        self._numbers = emit.pointer(numbers)
        self._next, self._last = emit.scratch(2), emit.scratch(2)

    def begin(self, unit: Value, num_units: Value) -> None:
        """From here on a thread asks for a unit's share of the chunks."""
        emit, count = self._emit, self._emit.build.sub(self._end, self._first)
        for place, number in ((self._next, unit), (self._last, emit.add(unit, 1))):
            share = emit.build.sdiv(emit.mul(count, number), num_units)
            emit.store(emit.add(self._first, share), place, 0)

    def take(self) -> Value:
        """Where the next chunk is, as a pointer, or null where the unit has no more."""
        emit, build = self._emit, self._emit.build
        chunk = emit.load(self._next, 0, I64)
        emit.store(emit.add(chunk, 1), self._next, 0)
        is_there = build.icmp_signed("<", chunk, emit.load(self._last, 0, I64))
        return emit.changed_where(is_there, lambda: [self._at(chunk)], [ir.Constant(POINTER, None)])[0]

    def _at(self, chunk: Value) -> Value:
        emit, per_block = self._emit, self._emit.number(chunks_a_block(self._shape))
        number = emit.load(self._numbers, emit.mul(emit.build.sdiv(chunk, per_block), 8), I64)
        part = emit.mul(emit.build.srem(chunk, per_block), GROUPS_A_PIECE * _group_bytes(self._shape))
        return emit.at(self._cache, emit.add(emit.mul(number, self._shape.block_bytes), part))


def ask_for_group(emit: Emitter, shape: CacheShape, chunk: Value, group: Value) -> None:
    """Ask for a group's part of a chunk, if there is one."""
    size = _group_bytes(shape)
    is_there = emit.build.icmp_unsigned("!=", chunk, ir.Constant(POINTER, None))
    with emit.when(is_there):
        begin = emit.at(chunk, emit.mul(group, size))
        for line in _lines(size):
            emit.prefetch(begin, line)


def _lines(size: int) -> Sequence[int]:
    """Offsets that meet every line of so many bytes, wherever they begin."""
    return [*range(0, size, _LINE_BYTES), size - 1]
