"""What of packing blocks goes through every code: their sums, and where they lie in panels. Each in one pass."""

import ctypes
from functools import cache
from typing import Any

import torch
from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import I8, I16, I32, I64, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, Machine
from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE, PAIR_ORDER

CODE_BYTES = {"q4": GROUP_SIZE // 2, "q8": GROUP_SIZE}
"""A block's last bytes, by form."""
_NUM_ARGUMENTS = {"sums": 5, "place": 8}


class BlockPack:
    """The kernels of a form, q4 or q8, compiled. They run in the calling thread, without the interpreter lock."""

    def __init__(self, form: str, machine: Machine) -> None:
        self._num_code_bytes = CODE_BYTES[form]
        self._module = CompiledModule(f"block pack {form} {machine}", lambda module: _emit(module, form, machine))
        self._sums, self._place = self._function("sums"), self._function("place")

    def sums(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of each block's codes, and of their squares, int32 (out, groups), of uint8 (out, groups, bytes)."""
        assert blocks.dtype == torch.uint8
        assert blocks.is_contiguous()
        num_blocks = blocks.shape[0] * blocks.shape[1]
        sums, squares = (torch.empty(blocks.shape[:2], dtype=torch.int32) for _ in range(2))
        self._sums(self._first_code(blocks), blocks.shape[2], num_blocks, sums.data_ptr(), squares.data_ptr())
        return sums, squares

    def place(self, blocks: torch.Tensor, panels: torch.Tensor, offset: int, group_bytes: int, width: int) -> None:
        """Write the codes of uint8 (out, groups, bytes) into uint8 (panels, bytes), in each from `offset` on.

        A group's begin `group_bytes` after those of the one before, and hold one word or pair of every output of
        the panel, `width` of them, then the next. Outputs that do not exist are left as they are.
        """
        num_outputs, num_groups, _ = blocks.shape
        assert blocks.is_contiguous()
        assert panels.is_contiguous()
        assert panels.shape[0] * width >= num_outputs
        last = offset + (num_groups - 1) * group_bytes + width * self._num_code_bytes
        assert panels.shape[1] >= last
        target = panels.data_ptr() + offset
        sizes = (blocks.shape[2], num_outputs, num_groups, panels.shape[1], group_bytes, width)
        self._place(self._first_code(blocks), *sizes, target)

    def _first_code(self, blocks: torch.Tensor) -> int:
        return blocks.data_ptr() + blocks.shape[2] - self._num_code_bytes

    def _function(self, name: str) -> Any:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * _NUM_ARGUMENTS[name])
        return kind(self._module.address(name))


@cache
def compiled_block_pack(form: str, machine: Machine) -> BlockPack:
    """The kernels, compiled once a process."""
    return BlockPack(form, machine)


def _emit(module: ir.Module, form: str, machine: Machine) -> None:
    _emit_sums(module, form, machine)
    _emit_place(module, form, machine)


def _emit_sums(module: ir.Module, form: str, machine: Machine) -> None:
    """Define `sums(first code, bytes of a block, number of blocks, sums, squares)`."""
    emit = Emitter(module, "sums", [I64] * _NUM_ARGUMENTS["sums"], machine.num_lanes)
    codes, block_bytes, num_blocks, sums, squares = emit.arguments
    source, sums, squares = (emit.pointer(each) for each in (codes, sums, squares))

    def one(number: Value, _: list[Value]) -> None:
        numbers = _numbers(emit, emit.at(source, emit.mul(number, block_bytes)), form)
        offset = emit.mul(number, 4)
        emit.store(_total(emit, numbers), sums, offset)
        emit.store(_total(emit, [emit.build.mul(each, each) for each in numbers]), squares, offset)

    emit.loop(0, num_blocks, 1, one)
    emit.finish()


def _numbers(emit: Emitter, codes: Value, form: str) -> list[Value]:
    """A block's codes as vectors of whole numbers: nibbles are 0 to 15, bytes are signed."""
    build, count = emit.build, CODE_BYTES[form]
    wide = ir.VectorType(I32, count)
    found = emit.load(codes, 0, ir.VectorType(I8, count))
    if form == "q8":
        return [build.sext(found, wide)]
    every = [ir.Constant(found.type, [value] * count) for value in (15, 4)]
    return [build.zext(build.and_(found, every[0]), wide), build.zext(build.lshr(found, every[1]), wide)]


def _total(emit: Emitter, vectors: list[Value]) -> Value:
    joined = vectors[0]
    for vector in vectors[1:]:
        joined = emit.build.add(joined, vector)
    kind = ir.FunctionType(I32, [joined.type])
    return emit.build.call(emit.declared(f"llvm.vector.reduce.add.v{joined.type.count}i32", kind), [joined])


def _emit_place(module: ir.Module, form: str, machine: Machine) -> None:
    """Define `place(first code, bytes of a block, outputs, groups, bytes a panel, bytes a group, to)`."""
    emit = Emitter(module, "place", [I64] * _NUM_ARGUMENTS["place"], machine.num_lanes)
    codes, block_bytes, num_outputs, num_groups, panel_bytes, group_bytes, width, target = emit.arguments
    source, target = emit.pointer(codes), emit.pointer(target)
    build, count = emit.build, CODE_BYTES[form]
    kind = I32 if form == "q4" else I16

    def one_output(output: Value, _: list[Value]) -> None:
        panel, column = build.sdiv(output, width), build.srem(output, width)
        begin = emit.at(target, emit.mul(panel, panel_bytes))
        size = kind.width // 8

        def one_group(group: Value, _: list[Value]) -> None:
            block = emit.add(emit.mul(output, num_groups), group)
            found = emit.load(emit.at(source, emit.mul(block, block_bytes)), 0, ir.VectorType(I8, count))
            ordered = found if form == "q4" else emit.shuffle(found, PAIR_ORDER)
            parts = build.bitcast(ordered, ir.VectorType(kind, count // size))
            place = emit.at(begin, emit.add(emit.mul(group, group_bytes), emit.mul(column, size)))
            for number in range(count // size):
                part = build.extract_element(parts, ir.Constant(I32, number))
                emit.store(part, place, emit.mul(width, number * size))

        emit.loop(0, num_groups, 1, one_group)

    emit.loop(0, num_outputs, 1, one_output)
    emit.finish()
