"""A watch learns what each kernel of a program took, and the program computes the same to the bit."""

import time

import numpy as np
import torch

from vllm_obs.engine.kernels.cpu.program import LABEL_FIELD, RECORD_FIELDS, Kernel, Kernels, Records, Times


class Watch:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.programs: list[tuple[Records, Times]] = []

    def program_ran(self, records: Records, times: Times) -> None:
        self.programs.append((records, times))


def norms(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, num_calls: int) -> Records:
    """The same norm, so many times, labelled 1, 2, …"""
    record = np.zeros(RECORD_FIELDS, np.int64)
    size = len(weight)
    record[1:11] = [
        x.data_ptr(), 4 * size, weight.data_ptr(), out.data_ptr(), 4 * size, len(x), size, 1, 0,
        int(np.float32(1e-5).view(np.int32)),
    ]  # fmt: skip
    record[0] = Kernel.NORM
    records = np.repeat(record[None], num_calls, axis=0)
    records[:, LABEL_FIELD] = np.arange(1, num_calls + 1)
    return records


def test_each_call_has_its_time_and_the_result_is_the_same_to_the_bit(kernels: Kernels) -> None:
    x, weight = torch.randn(7, 64), torch.randn(64)
    plain, watched = torch.empty_like(x), torch.empty_like(x)
    kernels.run(norms(x, weight, plain, 3), 2)
    watch = kernels.watch = Watch()
    before = time.monotonic_ns()
    try:
        kernels.run(norms(x, weight, watched, 3), 2)
    finally:
        kernels.watch = None
    after = time.monotonic_ns()
    assert torch.equal(plain, watched)
    ((records, times),) = watch.programs
    assert records[:, LABEL_FIELD].tolist() == [1, 2, 3]
    moments = (times[:, 0] * 10**9 + times[:, 1]).tolist()
    assert [before, *moments, after] == sorted([before, *moments, after])
    assert len(moments) == 4


def test_without_a_watch_nobody_is_told(kernels: Kernels) -> None:
    watch = kernels.watch = Watch()
    kernels.watch = None
    x, weight, out = torch.randn(2, 64), torch.randn(64), torch.empty(2, 64)
    kernels.run(norms(x, weight, out, 1), 1)
    assert out.isfinite().all(), "records hold addresses: the tensors live until here"
    assert watch.programs == []
