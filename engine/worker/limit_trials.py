"""What is timed to find out a machine's limits: matrix products as the model does them, and reading memory."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.kernels.cpu.block_matrix import NUMBERS, BlockMatrix
from vllm_obs.engine.kernels.cpu.jit import this_machine
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix
from vllm_obs.engine.kernels.cpu.program import BLOCK_FORMS
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.linear_calls import Matrix, multiply
from vllm_obs.engine.model.numerics import Numerics
from vllm_obs.engine.worker.limits import BestRate, MachineLimits, Trial
from vllm_obs.telemetry.memory_samples import Ranges

BUDGET_SECONDS = 0.06
"""Half of it for products, the rest for reading."""
SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Rows, inputs and outputs of a product; the larger ones are tried where they take next to no time."""
REPEATS = 5
PIECE_BYTES = 8 << 20
"""Read at once: more than the caches that a core has to itself."""
MIN_READ_BYTES = 32 << 20
DEVICE_READ_BYTES = 512 << 20

Product = Callable[[], object]
MakeProduct = Callable[[int], Product]
"""From a size, a product of two square matrices."""


def measure_limits(model: object, dtype: torch.dtype, device: torch.device, weights: Ranges) -> MachineLimits:
    """The best of several short repeats, with the threads that the model has, in about BUDGET_SECONDS.

    Reading is timed on the model's own weights, as a step reads them, where they are large enough.
    """
    begun_at = time.perf_counter_ns()
    half_ns = int(BUDGET_SECONDS * 1e9) // 2
    used, makers = products_of(model, dtype, device)
    arithmetic = BestRate(begun_at + half_ns)
    with torch.inference_mode():
        time_products(arithmetic, makers, device)
        memory = BestRate(begun_at + 2 * half_ns)
        time_reading(memory, pieces_of(weights, device), device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return MachineLimits(str(used).removeprefix("torch."), arithmetic.rate, memory.rate)


def products_of(
    model: object, dtype: torch.dtype, device: torch.device
) -> tuple[torch.dtype, Sequence[MakeProduct]]:
    """In which numbers a model's products are done, and the ways to do one: its own, and torch's plain one."""
    if isinstance(model, CompiledDecoder):
        has_blocks = bool({*model.kernels.forms} & {*BLOCK_FORMS})
        return torch.int16 if has_blocks else torch.float32, [_compiled(model), _plain(torch.float32, device)]
    numerics = getattr(model, "numerics", None)
    if isinstance(numerics, Numerics):
        return numerics.weights, [_own(numerics), _plain(numerics.weights, device)]
    return dtype, [_plain(dtype, device)]


def time_products(best: BestRate, makers: Sequence[MakeProduct], device: torch.device) -> None:
    """Larger and larger ones, as long as there is time."""
    for size in SIZES:
        amount = 2.0 * size**3
        for make in makers:
            if not best.has_time_for(amount):
                return
            trial = Trial(amount, _waited_for(make(size), device))
            for _ in range(REPEATS):
                if best.has_time_for(amount):
                    best.take(trial)


def time_reading(best: BestRate, pieces: Sequence[torch.Tensor], device: torch.device) -> None:
    """One piece after another, from the first again after the last."""
    for piece in cycle(pieces):
        if not best.has_time_for(piece.nbytes):
            return
        best.take(Trial(piece.nbytes, _waited_for(piece.sum, device)))


def pieces_of(weights: Ranges, device: torch.device) -> list[torch.Tensor]:
    """What is read: whole pieces of the weights, or where these are too few a buffer, as int64.

    Of whole numbers, because a sum of them takes no notice of what they mean.
    """
    if device.type == "cuda":
        return [torch.zeros(DEVICE_READ_BYTES // 8, dtype=torch.int64, device=device)]
    pieces = [piece for address, size in weights for piece in _pieces_at(address, size)]
    if len(pieces) * PIECE_BYTES < MIN_READ_BYTES:
        pieces = list(torch.ones(MIN_READ_BYTES // PIECE_BYTES, PIECE_BYTES // 8, dtype=torch.int64))
    return pieces


def _pieces_at(address: int, size: int) -> Iterator[torch.Tensor]:
    """The memory of tensors that the worker holds, seen as numbers; only ever read."""
    skipped = -address % 8
    for begin in range(skipped, size - PIECE_BYTES + 1, PIECE_BYTES):
        memory = (ctypes.c_char * PIECE_BYTES).from_address(address + begin)
        yield torch.frombuffer(memory, dtype=torch.int64)


def _compiled(model: CompiledDecoder) -> MakeProduct:
    machine = this_machine()
    assert machine is not None, "it has compiled a model"

    def matrix_of(size: int) -> Matrix:
        if "q4" in model.kernels.forms:
            return BlockMatrix.pack(torch.zeros(size, size // 32 * 20, dtype=torch.uint8), "Q4_1", machine)
        if "q8" in model.kernels.forms:
            return BlockMatrix.pack(torch.zeros(size, size // 32 * 34, dtype=torch.uint8), "Q8_0", machine)
        numbers = torch.full((size, size), 0.5, dtype=model.dtype)
        return (BlockMatrix.round if NUMBERS in model.kernels.forms else PackedMatrix.pack)(numbers, machine)

    def make(size: int) -> Product:
        matrix, rows = matrix_of(size), torch.full((size, size), 0.5)
        return lambda: multiply(model.kernels, rows, matrix, torch.get_num_threads())

    return make


def _own(numerics: Numerics) -> MakeProduct:
    def make(size: int) -> Product:
        linear = numerics.linear(torch.full((size, size), 0.5, device=numerics.device), None)
        rows = torch.full((size, size), 0.5, dtype=numerics.activations, device=numerics.device)
        return lambda: linear(rows)

    return make


def _plain(dtype: torch.dtype, device: torch.device) -> MakeProduct:
    def make(size: int) -> Product:
        matrix: Any = torch.full((size, size), 0.5, dtype=dtype, device=device)
        return lambda: F.linear(matrix, matrix)

    return make


def _waited_for(run: Product, device: torch.device) -> Product:
    """On a GPU what was only ordered is not done yet."""
    if device.type != "cuda":
        return run

    def run_and_wait() -> None:
        run()
        torch.cuda.synchronize(device)

    return run_and_wait
