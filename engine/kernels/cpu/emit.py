"""The words kernels are written in: loops, loads, vectors and the few functions they share."""

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F16 = ir.FloatType(), ir.HalfType()
POINTER = ir.PointerType()
VOID = ir.VoidType()

Value = Any
"""An `ir.Value`; the library has no types."""


def new_module() -> ir.Module:
    """An empty module for this machine."""
    module = ir.Module()
    module.triple = llvm.get_default_triple()
    return module


class Emitter:
    """Writes one function, at one place at a time. Offsets are in bytes; `num_lanes` is a vector's length."""

    def __init__(self, module: ir.Module, name: str, arguments: Sequence[Any], num_lanes: int) -> None:
        self.module = module
        self.num_lanes = num_lanes
        self.vector = ir.VectorType(F32, num_lanes)
        self.integers = ir.VectorType(I32, num_lanes)
        self.function = ir.Function(module, ir.FunctionType(VOID, list(arguments)), name)
        self.arguments = list(self.function.args)
        self.entry = self.function.append_basic_block()
        self.build = ir.IRBuilder(self.entry)
        self.zeros = ir.Constant(self.vector, [0.0] * num_lanes)

    # Whole numbers

    def number(self, value: int) -> Value:
        """A constant."""
        return ir.Constant(I64, value)

    def add(self, first: Value, second: Value | int) -> Value:
        """Sum of two whole numbers."""
        return self.build.add(first, self._int(second))

    def mul(self, first: Value, second: Value | int) -> Value:
        """Product of two whole numbers."""
        return self.build.mul(first, self._int(second))

    def minimum(self, first: Value, second: Value | int) -> Value:
        """The smaller of two whole numbers."""
        other = self._int(second)
        return self.build.select(self.build.icmp_signed("<", first, other), first, other)

    def maximum(self, first: Value, second: Value | int) -> Value:
        """The larger of two whole numbers."""
        other = self._int(second)
        return self.build.select(self.build.icmp_signed(">", first, other), first, other)

    def fields(self, record: Value, count: int) -> list[Value]:
        """The first `count` int64 of a record in memory."""
        return [self.load(record, 8 * number, I64) for number in range(count)]

    # Memory

    def pointer(self, address: Value) -> Value:
        """An address as a pointer."""
        return self.build.inttoptr(address, POINTER)

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """The pointer so many bytes further."""
        return self.build.gep(pointer, [self._int(offset)], source_etype=I8)

    def load(self, pointer: Value, offset: Value | int, kind: Any) -> Value:
        """A scalar or vector that need not be aligned."""
        value = self.build.load(self.at(pointer, offset), typ=kind)
        value.align = 1
        return value

    def store(self, value: Value, pointer: Value, offset: Value | int) -> None:
        """The counterpart of `load`."""
        self.build.store(value, self.at(pointer, offset)).align = 1

    def limited(self, vector: Value, limit: float) -> Value:
        """Each lane, or the limit with its sign where it is beyond; NaN stays NaN."""
        build, high, low = self.build, self.constant(limit), self.constant(-limit)
        below = build.select(build.fcmp_ordered(">", vector, high), high, vector)
        return build.select(build.fcmp_ordered("<", below, low), low, below)

    def scratch(self, num_floats: int) -> Value:
        """Room for so many float32 on the stack; one for the whole call."""
        with self.build.goto_block(self.entry):
            room = self.build.alloca(ir.ArrayType(F32, num_floats))
        room.align = 64
        room.type = POINTER  # the library still makes a typed one
        return room

    # Vectors

    def splat(self, scalar: Value) -> Value:
        """A vector whose lanes are all this float, or this 32-bit whole number."""
        undefined = ir.Constant(ir.VectorType(scalar.type, self.num_lanes), ir.Undefined)
        first = self.build.insert_element(undefined, scalar, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.num_lanes), [0] * self.num_lanes)
        return self.build.shuffle_vector(first, undefined, lanes)

    def constant(self, value: float) -> Value:
        """A vector whose lanes are all this number."""
        return ir.Constant(self.vector, [value] * self.num_lanes)

    def shuffle(self, vector: Value, lanes: Sequence[int]) -> Value:
        """The vector's lanes in another order."""
        order = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.build.shuffle_vector(vector, vector, order)

    def every(self, value: int) -> Value:
        """A vector of 32-bit whole numbers that are all this one."""
        return ir.Constant(self.integers, [value] * self.num_lanes)

    def fma(self, first: Value, second: Value, third: Value) -> Value:
        """first * second + third, rounded once."""
        return self._call("llvm.fma", self.vector, [first, second, third])

    def max(self, first: Value, second: Value) -> Value:
        """Lane by lane the larger one; the second where either is NaN, as the instruction has it."""
        return self.build.select(self.build.fcmp_ordered(">", first, second), first, second)

    def largest(self, vector: Value) -> Value:
        """The largest lane; some lane where there is a NaN."""
        return self.folded(vector, self.max)

    def total(self, vector: Value) -> Value:
        """The sum of the lanes, halves first, so that its rounding is the same everywhere."""
        return self.folded(vector, self.build.fadd)

    def folded(self, vector: Value, join: Callable[[Value, Value], Value]) -> Value:
        """Join the lanes' halves until one is left."""
        count = self.num_lanes
        while count > 1:
            count //= 2
            # Into shorter vectors: with lanes left as they are, LLVM 22 has mixed up those of whole numbers.
            vector = join(self.shuffle(vector, range(count)), self.shuffle(vector, range(count, 2 * count)))
        return self.build.extract_element(vector, ir.Constant(I32, 0))

    def rint(self, vector: Value) -> Value:
        """Each lane rounded to the nearest whole number, ties to even."""
        return self._call("llvm.rint", self.vector, [vector])

    def prefetch(self, pointer: Value, offset: Value | int, is_next: bool = False) -> None:
        """Ask for a cache line that is read soon, which need not be there at all.

        Into the second cache: the first can wait for so few lines that calculating would stop. `is_next` is for
        what is near already.
        """
        function = self.declared("llvm.prefetch.p0", ir.FunctionType(VOID, [POINTER, I32, I32, I32]))
        read, keep, data = (ir.Constant(I32, number) for number in (0, 3 if is_next else 2, 1))
        self.build.call(function, [self.at(pointer, offset), read, keep, data])

    def smaller(self, first: Value, second: Value) -> Value:
        """The smaller of two floats; the second where either is NaN."""
        return self.build.select(self.build.fcmp_ordered("<", first, second), first, second)

    def root(self, scalar: Value) -> Value:
        """The square root of a float."""
        return self._call("llvm.sqrt", F32, [scalar])

    # Control

    def loop(
        self,
        begin: Value | int,
        end: Value | int,
        step: int,
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """`for i in range(begin, end, step): carried = body(i, carried)`; what is carried in the end."""
        build = self.build
        first, last = self._int(begin), self._int(end)
        before = build.block
        head, after = self.function.append_basic_block(), self.function.append_basic_block()
        build.cbranch(build.icmp_signed("<", first, last), head, after)
        build.position_at_end(head)
        counter = build.phi(I64)
        counter.add_incoming(first, before)
        inside = [build.phi(value.type) for value in carried]
        for phi, value in zip(inside, carried, strict=True):
            phi.add_incoming(value, before)
        results = list(body(counter, list(inside)) or [])
        following, tail = build.add(counter, self.number(step)), build.block
        counter.add_incoming(following, tail)
        for phi, value in zip(inside, results, strict=True):
            phi.add_incoming(value, tail)
        build.cbranch(build.icmp_signed("<", following, last), head, after)
        build.position_at_end(after)
        outside = []
        for initial, value in zip(carried, results, strict=True):
            phi = build.phi(value.type)
            phi.add_incoming(initial, before)
            phi.add_incoming(value, tail)
            outside.append(phi)
        return outside

    def choose(self, number: Value, bodies: dict[int, Callable[[], None]]) -> None:
        """Run the body of that number, or none."""
        after = self.function.append_basic_block()
        switch = self.build.switch(number, after)
        for case, body in bodies.items():
            block = self.function.append_basic_block()
            switch.add_case(self.number(case), block)
            self.build.position_at_end(block)
            body()
            self.build.branch(after)
        self.build.position_at_end(after)

    def when(self, condition: Value) -> Any:
        """A context whose instructions run only where the condition holds."""
        return self.build.if_then(condition)

    def changed_where(
        self, condition: Value, body: Callable[[], Sequence[Value]], values: Sequence[Value]
    ) -> list[Value]:
        """What the body makes of the values where the condition holds, else the values as they are."""
        build, before = self.build, self.build.block
        inside, after = self.function.append_basic_block(), self.function.append_basic_block()
        build.cbranch(condition, inside, after)
        build.position_at_end(inside)
        results, end = list(body()), build.block
        build.branch(after)
        build.position_at_end(after)
        merged = []
        for value, result in zip(values, results, strict=True):
            phi = build.phi(value.type)
            phi.add_incoming(value, before)
            phi.add_incoming(result, end)
            merged.append(phi)
        return merged

    def changed_where_any(
        self, lanes: Value, body: Callable[[], Sequence[Value]], values: Sequence[Value]
    ) -> list[Value]:
        """`changed_where` any of the lanes (bits) is set."""
        bits = self.build.bitcast(lanes, ir.IntType(self.num_lanes))
        is_any = self.build.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
        return self.changed_where(is_any, body, values)

    def finish(self) -> None:
        """End the function."""
        self.build.ret_void()

    def declared(self, name: str, kind: ir.FunctionType) -> Value:
        """A function by name, declared in this module if it is not yet."""
        known = self.module.globals.get(name)
        return ir.Function(self.module, kind, name) if known is None else known

    def _call(self, name: str, kind: Any, arguments: list[Value]) -> Value:
        """An intrinsic from values of one kind to that kind."""
        function = ir.FunctionType(kind, [value.type for value in arguments])
        return self.build.call(self.declared(f"{name}.{_suffix(kind)}", function), arguments)

    def _int(self, value: Value | int) -> Value:
        return self.number(value) if isinstance(value, int) else value


def _suffix(kind: Any) -> str:
    """How an intrinsic's name says a type."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    assert kind == F32
    return "f32"
