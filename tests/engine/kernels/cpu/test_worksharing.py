"""Work shared among the threads of a parallel region: all of it is done, each part by one thread."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llvmlite import ir

from vllm_obs.engine.kept_files import KeptFiles
from vllm_obs.engine.kernels.cpu.emit import I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import CompiledModule, run_in_parallel
from vllm_obs.engine.kernels.cpu.worksharing import share, shares_of, take_ahead, take_each

COUNT = 1000

Body = Callable[[Emitter, Value, Value], None]
"""Emits what a thread does, with a record's pointer and where the results of the numbers below COUNT lie."""


def ran(emit_body: Body, folder: Path, num_threads: int) -> np.ndarray:
    """Record: counter, address of the results. Results: int64 (COUNT, 2)."""

    def emit_all(module: ir.Module) -> None:
        emit = Emitter(module, "work", [POINTER], 8)
        record = emit.arguments[0]
        emit_body(emit, record, emit.pointer(emit.load(record, 8, I64)))
        emit.finish()

    folder.chmod(0o700)
    module = CompiledModule("work", emit_all, KeptFiles("kernels", folder))
    results = np.zeros((COUNT, 2), np.int64)
    record = np.array([0, results.ctypes.data], np.int64)
    run_in_parallel(module.address("work"), record.ctypes.data, num_threads)
    return results


def note(emit: Emitter, results: Value, number: Value, following: Value) -> None:
    """Count a number, and keep what follows it."""
    place = emit.at(results, emit.mul(number, 16))
    emit.store(emit.add(emit.load(place, 0, I64), 1), place, 0)
    emit.store(following, place, 8)


def shared(emit: Emitter, record: Value, results: Value) -> None:
    count = emit.number(COUNT)
    emit.loop(*share(emit, count), 1, lambda number, _: note(emit, results, number, shares_of(emit, count)))


def taken(emit: Emitter, record: Value, results: Value) -> None:
    take_each(emit, record, emit.number(COUNT), lambda number: note(emit, results, number, number))


def taken_ahead(emit: Emitter, record: Value, results: Value) -> None:
    take_ahead(emit, record, emit.number(COUNT), lambda number, following: note(emit, results, number, following))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("body", [shared, taken, taken_ahead])
def test_every_part_is_done_once(body: Body, num_threads: int, tmp_path: Path) -> None:
    assert (ran(body, tmp_path, num_threads)[:, 0] == 1).all()


def test_the_largest_share_is_known(tmp_path: Path) -> None:
    assert (ran(shared, tmp_path, 3)[:, 1] == 334).all()


def test_one_thread_knows_what_follows_and_that_nothing_does(tmp_path: Path) -> None:
    following = ran(taken_ahead, tmp_path, 1)[:, 1]
    assert following.tolist() == [*range(1, COUNT), COUNT - 1]
