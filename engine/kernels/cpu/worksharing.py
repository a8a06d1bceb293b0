"""How the threads of a parallel region share work: each a fixed part, or whoever is free takes what is next."""

from collections.abc import Callable

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import I32, I64, VOID, Emitter, Value


def num_threads(emit: Emitter) -> Value:
    """How many threads the parallel region has."""
    return emit.build.sext(_openmp(emit, "omp_get_num_threads"), I64)


def thread(emit: Emitter) -> Value:
    """The calling thread's number in the parallel region."""
    return emit.build.sext(_openmp(emit, "omp_get_thread_num"), I64)


def barrier(emit: Emitter) -> None:
    """Wait for the other threads of the parallel region."""
    emit.build.call(emit.declared("GOMP_barrier", ir.FunctionType(VOID, [])), [])


def share(emit: Emitter, count: Value) -> tuple[Value, Value]:
    """The calling thread's part of range(count), among all threads of the parallel region."""
    number, threads = thread(emit), num_threads(emit)
    begin = emit.build.sdiv(emit.mul(count, number), threads)
    return begin, emit.build.sdiv(emit.mul(count, emit.add(number, 1)), threads)


def shares_of(emit: Emitter, count: Value) -> Value:
    """How many of so many things each thread of the parallel region has, if some have less."""
    threads = num_threads(emit)
    return emit.build.sdiv(emit.add(count, emit.build.sub(threads, emit.number(1))), threads)


def take_each(emit: Emitter, counter: Value, count: Value, body: Callable[[Value], None]) -> None:
    """`body(number)` for each number below `count` that no other thread took from the counter in memory."""
    build = emit.build
    head, inside, after = (emit.function.append_basic_block() for _ in range(3))
    build.branch(head)
    build.position_at_end(head)
    number = build.atomic_rmw("add", counter, emit.number(1), "monotonic")
    build.cbranch(build.icmp_signed("<", number, count), inside, after)
    build.position_at_end(inside)
    body(number)
    build.branch(head)
    build.position_at_end(after)


def take_ahead(emit: Emitter, counter: Value, count: Value, body: Callable[[Value, Value], None]) -> None:
    """The same as `body(number, following)`: the thread takes the next one, if there is any, before this one.

    `following` is `number` itself for its last.
    """
    build, one = emit.build, emit.number(1)
    head, inside, after = (emit.function.append_basic_block() for _ in range(3))
    first, before = build.atomic_rmw("add", counter, one, "monotonic"), build.block
    build.branch(head)
    build.position_at_end(head)
    number = build.phi(I64)
    number.add_incoming(first, before)
    build.cbranch(build.icmp_signed("<", number, count), inside, after)
    build.position_at_end(inside)
    following = build.atomic_rmw("add", counter, one, "monotonic")
    body(number, build.select(build.icmp_signed("<", following, count), following, number))
    number.add_incoming(following, build.block)
    build.branch(head)
    build.position_at_end(after)


def _openmp(emit: Emitter, name: str) -> Value:
    return emit.build.call(emit.declared(name, ir.FunctionType(I32, [])), [])
