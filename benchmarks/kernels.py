"""Prints how long the products of the default model's layers take by form of the weights and number of rows.

Every layer has weights of its own, as in a real step, and forms take turns, so that what else the machine does is
shared out evenly.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from vllm_obs.engine.worker.threads import limit_spinning

limit_spinning()  # as the workers do: it must come before torch

import numpy as np  # noqa: E402
import torch  # noqa: E402

from vllm_obs.engine.kernels.cpu.block_matrix import BlockMatrix  # noqa: E402
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape  # noqa: E402
from vllm_obs.engine.kernels.cpu.jit import Machine, this_machine  # noqa: E402
from vllm_obs.engine.kernels.cpu.linear import PackedMatrix  # noqa: E402
from vllm_obs.engine.kernels.cpu.linear_finish import Finish  # noqa: E402
from vllm_obs.engine.kernels.cpu.program import Kernels, Records  # noqa: E402
from vllm_obs.engine.model.linear_calls import Matrix, code_bytes, linear_call, room_for_codes, set_linear  # noqa: E402

NUM_LAYERS = 30
SHAPES = {"qkv": (960, 576), "output": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
FORMS = ("int16", "q4")
COUNTER_FIELD = 12
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)


def random_matrix(form: str, num_outputs: int, num_inputs: int, machine: Machine) -> Matrix:
    """Codes and scales of ordinary size."""
    numbers = torch.randn(num_outputs, num_inputs)
    if form == "int16":
        return BlockMatrix.round(numbers, machine)
    if form != "q4":
        return PackedMatrix.pack(numbers.to(getattr(torch, form)), machine)
    blocks = torch.randint(0, 256, (num_outputs, num_inputs // 32, 20), dtype=torch.uint8)
    blocks[..., :4] = torch.tensor([0.01, -0.08]).half().view(torch.uint8)
    return BlockMatrix.pack(blocks.flatten(1), "Q4_1", machine)


class Layers:
    """One matrix of each layer, and the program that multiplies with all of them."""

    def __init__(self, kernels: Kernels, matrices: list[Matrix]) -> None:
        self._kernels, self._matrices = kernels, matrices

    def product(self, num_rows: int, num_threads: int) -> Callable[[], None]:
        """All layers' products of so many rows."""
        first = self._matrices[0]
        x = torch.randn(num_rows, first.num_inputs)
        out = torch.empty(num_rows, first.padded_outputs)
        codes = room_for_codes(num_rows, code_bytes(first))
        calls: Records = np.stack([linear_call(matrix, Finish.STORE, 0) for matrix in self._matrices])
        set_linear(calls, x, out, codes)

        def run(keep: tuple[torch.Tensor, ...] = (x, out, codes)) -> None:
            calls[:, COUNTER_FIELD] = 0
            self._kernels.run(calls, num_threads)

        return run


class Best(NamedTuple):
    """Of many runs: the shortest by the clock, the middle one, and CPU time of all threads of the middle one."""

    shortest: float
    median: float
    cpu: float


def take_turns(runs: list[Callable[[], None]], seconds: float) -> Iterator[Best]:
    """Each run's times, in seconds, while they take turns for so long."""
    times: list[list[tuple[float, float]]] = [[] for _ in runs]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[-1]) < 3:
        for run, found in zip(runs, times, strict=True):
            begun, cpu = time.perf_counter(), time.process_time()
            run()
            found.append((time.perf_counter() - begun, time.process_time() - cpu))
    for found in times:
        ordered = sorted(found)
        yield Best(ordered[0][0], *ordered[len(ordered) // 2])


def main() -> None:
    """A line for each shape and number of rows; µs a layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--forms", nargs="*", default=FORMS)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    machine = this_machine()
    assert machine is not None, "this machine has no compiled kernels"
    kernels = Kernels(machine, CacheShape(9, 3, 64, 16, "float16"), tuple(arguments.forms))
    print("µs a layer: shortest, median, CPU of the median; GFLOP/s of the shortest")
    for name in arguments.shapes:
        num_outputs, num_inputs = SHAPES[name]
        layers = [
            Layers(kernels, [random_matrix(form, num_outputs, num_inputs, machine) for _ in range(NUM_LAYERS)])
            for form in arguments.forms
        ]
        for num_rows in arguments.rows:
            runs = [each.product(num_rows, arguments.threads) for each in layers]
            line = f"{name:8} {num_outputs:5} x {num_inputs:4} {num_rows:4} rows"
            for form, best in zip(arguments.forms, take_turns(runs, arguments.seconds), strict=True):
                each = [1e6 * seconds / NUM_LAYERS for seconds in best]
                rate = 2e-3 * num_rows * num_outputs * num_inputs / each[0]
                line += f" | {form} {each[0]:7.1f} {each[1]:7.1f} {each[2]:7.1f} {rate:6.0f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
