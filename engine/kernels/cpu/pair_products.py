"""Products of 16-bit whole numbers, by the instructions an x86 CPU has for pairs of them."""

from collections.abc import Callable

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine

AddPairs = Callable[[Emitter, Value, Value, Value], Value]
"""Sums (int32) plus products of 16-bit numbers, those of two neighbours together."""


def pair_adder(machine: Machine) -> AddPairs:
    """What adds products in the fewest instructions that the machine has."""
    return _add_pairs_at_once if machine.adds_products else _add_pairs


def _add_pairs(emit: Emitter, sums: Value, first: Value, second: Value) -> Value:
    kinds = [first.type, second.type]
    name = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[emit.num_lanes]
    function = emit.declared(name, ir.FunctionType(emit.integers, kinds))
    return emit.build.add(sums, emit.build.call(function, [first, second]))


def _add_pairs_at_once(emit: Emitter, sums: Value, first: Value, second: Value) -> Value:
    kinds = [sums.type, first.type, second.type]
    function = emit.declared("llvm.x86.avx512.vpdpwssd.512", ir.FunctionType(emit.integers, kinds))
    return emit.build.call(function, [sums, first, second])


def scaled_codes(emit: Emitter, codes: Value, scales: Value) -> Value:
    """Products of signed 16-bit numbers without their lower 15 bits, rounded."""
    name = {8: "llvm.x86.avx2.pmul.hr.sw", 16: "llvm.x86.avx512.pmul.hr.sw.512"}[emit.num_lanes]
    function = emit.declared(name, ir.FunctionType(codes.type, [codes.type, scales.type]))
    return emit.build.call(function, [codes, scales])
