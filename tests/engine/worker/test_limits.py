"""A machine's limits: the best of what was timed until the time is up, recorded once, and no start fails by it."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.numerics import choose_numerics
from vllm_obs.engine.worker import limit_trials
from vllm_obs.engine.worker.limit_trials import PIECE_BYTES, measure_limits, pieces_of, products_of, time_products
from vllm_obs.engine.worker.limits import BestRate, MachineLimits, Trial, record_limits
from vllm_obs.telemetry.memory_samples import Ranges
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import WorkerLimits

CPU = torch.device("cpu")


class Clock:
    """Time that passes only where something is run."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def taking(self, *lengths: int) -> Callable[[], None]:
        """What takes these lengths (ns), one after another, and then the last."""
        left = list(lengths)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


class Worker:
    """Whose limits are known, or cannot be measured."""

    def __init__(self, limits: MachineLimits | None) -> None:
        self.limits = limits
        self.asked: list[Ranges] = []

    def machine_limits(self, weights: Ranges) -> MachineLimits:
        self.asked.append(weights)
        if self.limits is None:
            raise RuntimeError("no")
        return self.limits


def test_best_of_the_trials_counts_and_none_is_begun_that_would_be_late() -> None:
    clock = Clock()
    best, run = BestRate(1000, clock), clock.taking(400, 200, 250)
    num_runs = 0
    while best.has_time_for(100) and num_runs < 9:
        best.take(Trial(100, run))
        num_runs += 1
    assert (num_runs, best.rate) == (3, 100 * 1e9 / 200), "a fourth would end at 1050"
    assert not best.has_time_for(100)
    assert best.has_time_for(10)


def test_first_trial_is_run_however_late_it_is() -> None:
    clock = Clock()
    clock.now = 5000
    best = BestRate(1000, clock)
    assert best.has_time_for(10**12)
    best.take(Trial(10, clock.taking(10)))
    assert (best.rate, best.has_time_for(1)) == (1e9, False)


def test_products_grow_until_one_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_trials, "REPEATS", 2)
    clock, made = Clock(), list[int]()

    def make(size: int) -> Callable[[], None]:
        made.append(size)
        return clock.taking(size**3)

    time_products(BestRate(5 * 1024**3, clock), [make], CPU)
    assert made == [256, 512, 1024]


def test_limits_are_recorded_once_with_their_rank() -> None:
    recorder, worker = MemoryRecorder(), Worker(MachineLimits("float32", 5e10, 1e10))
    record_limits(worker, 3, [(4096, 10)], recorder)
    (record,) = recorder.of(WorkerLimits)
    assert isinstance(record, WorkerLimits)
    assert record == WorkerLimits(3, "float32", 5e10, 1e10, record.measured_at)
    assert record.measured_at > 0
    assert worker.asked == [[(4096, 10)]]


def test_no_start_fails_by_it(caplog: pytest.LogCaptureFixture) -> None:
    recorder = MemoryRecorder()
    record_limits(Worker(None), 0, [], recorder)
    record_limits(object(), 0, [], recorder)
    assert recorder.of(WorkerLimits) == []
    assert caplog.text.count("the limits of this machine could not be measured") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_without_ways_of_its_own_is_measured_as_torch_does_it(dtype: torch.dtype) -> None:
    limits = measure_limits(object(), dtype, CPU, [])
    assert limits.dtype == str(dtype).removeprefix("torch.")
    assert limits.flops_per_second > 0
    assert limits.bytes_per_second > 0


def test_a_products_numbers_are_those_of_the_model() -> None:
    class Model:
        numerics = choose_numerics(torch.float32, CPU, 10)

    used, makers = products_of(Model(), torch.bfloat16, CPU)
    assert used == Model.numerics.weights == torch.float32
    found = [make(4)() for make in makers]
    assert len(found) == 2
    assert all(torch.equal(product, torch.ones(4, 4)) for product in found if isinstance(product, torch.Tensor))


def test_weights_are_read_in_whole_pieces_where_they_are() -> None:
    weights = torch.arange(5 * PIECE_BYTES // 8, dtype=torch.int64)
    pieces = pieces_of([(weights.data_ptr(), weights.nbytes - 8), (weights.data_ptr(), 100)], CPU)
    assert [piece.data_ptr() - weights.data_ptr() for piece in pieces] == [PIECE_BYTES * n for n in range(4)]
    assert sum(int(piece.sum()) for piece in pieces) == int(weights[: 4 * PIECE_BYTES // 8].sum())


def test_of_a_small_model_a_buffer_is_read_instead() -> None:
    weights = torch.zeros(PIECE_BYTES, dtype=torch.uint8)
    pieces = pieces_of([(weights.data_ptr(), weights.nbytes)], CPU)
    assert [piece.nbytes for piece in pieces] == [PIECE_BYTES] * 4
    assert all(piece.data_ptr() != weights.data_ptr() for piece in pieces)


@pytest.mark.parametrize(("forms", "numbers"), [(("float16",), torch.float32), (("q4", "q8"), torch.int16)])
def test_compiled_models_are_measured_with_their_own_kernels(
    forms: tuple[str, ...], numbers: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_trials, "_compiled", lambda model: "compiled")
    model = CompiledDecoder.__new__(CompiledDecoder)
    object.__setattr__(model, "kernels", SimpleNamespace(forms=forms))
    used, makers = products_of(model, torch.float16, CPU)
    assert (used, len(makers)) == (numbers, 2)
    assert str(makers[0]) == "compiled"
