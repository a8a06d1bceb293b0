"""A GPU's memory is divided by its numbers; where it is not enough, an error has them, and the flags to change."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_decoder import FakeDecoder, fake_config
from fake_gpu_memory import FakeMemory

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.group_setup import OutOfStepError
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.engine.worker import worker as worker_module
from vllm_obs.engine.worker.device_memory import cuda_cache_budget
from vllm_obs.engine.worker.gpu_memory import MemoryHeld, OutOfGpuMemoryError, is_out_of_memory, out_of_memory
from vllm_obs.engine.worker.worker import Worker

GIB = 2**30
CARD = FakeMemory(total=80 * GIB, free=GIB, num_reserved=75 * GIB)
TORCH_SAYS = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 80.00 GiB "
    "of which 1.00 GiB is free."
)
FLAGS = "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or set --enforce-eager"


def error() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(TORCH_SAYS)


def test_the_message_has_the_numbers_who_holds_what_and_the_flags() -> None:
    held = MemoryHeld(weights=15 * GIB, kv_cache=50 * GIB, graphs=200 * 2**20)
    assert out_of_memory(error(), "in a step", held, CARD) == (
        "out of GPU memory in a step: 2.50 GiB asked for, 1.00 GiB of 80.00 GiB free; the weights hold 15.00 GiB, "
        f"the KV cache 50.00 GiB, CUDA graphs 0.20 GiB, other processes 4.00 GiB; {FLAGS}"
    )


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Tried to allocate 20.00 MiB. GPU 0", "20.00 MiB"),
        ("Tried to allocate 512 bytes", "512 bytes"),
        ("Tried to allocate 3.00 KiB", "3072 bytes"),
        ("something else", "an unknown amount"),
    ],
)
def test_what_was_asked_for_is_read_from_torchs_words(said: str, asked: str) -> None:
    message = out_of_memory(torch.OutOfMemoryError(said), "here", MemoryHeld(), CARD)
    assert message.startswith(f"out of GPU memory here: {asked} asked for, ")


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (torch.OutOfMemoryError("full"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (MemoryError("out of memory"), False),
    ],
)
def test_drivers_and_libraries_are_out_of_memory_too(error: Exception, is_full: bool) -> None:
    assert is_out_of_memory(error) is is_full


def test_a_step_whose_kernel_the_driver_has_no_memory_for_has_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(monkeypatch, FakeDecoder())
    worker.initialize_cache(7)
    worker.config = replace(worker.config, model=replace(worker.config.model, device="cuda"))
    with (
        pytest.raises(OutOfGpuMemoryError, match=r"in a step: an unknown amount asked for, 1\.00 GiB of"),
        worker._in_step(),
    ):
        raise RuntimeError("Triton Error [CUDA]: out of memory")


class FullDecoder(FakeDecoder):
    """Out of memory wherever a test says."""

    def __init__(self, *fails: str) -> None:
        super().__init__()
        self.fails = fails

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> Any:
        return self._run("cache", lambda: super(FullDecoder, self).allocate_kv_cache(num_blocks, block_size))

    def forward(self, *given: Any) -> torch.Tensor:
        return self._run("forward", lambda: super(FullDecoder, self).forward(*given))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._run("logits", lambda: super(FullDecoder, self).compute_logits(hidden))

    def _run(self, what: str, act: Any) -> Any:
        if what in self.fails:
            raise error()
        return act()


def worker_of(monkeypatch: pytest.MonkeyPatch, model: FakeDecoder) -> Worker:
    monkeypatch.setattr(worker_module, "load_model", lambda *_: model)
    worker = Worker(fake_config())
    worker._memory = CARD
    worker.load_model()
    return worker


def plan() -> StepPlan:
    row = NewRow("a", np.arange(3, dtype=np.int32), 3, SamplingSpec(), [0], 0)
    return StepPlan(1, [row], [], [], [], [], [3], [])


def run(worker: Worker, plan: StepPlan) -> ModelRunnerOutput:
    worker.execute_model(plan)
    return worker.sample_tokens(None)


def test_weights_that_do_not_fit_are_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> FakeDecoder:
        raise error()

    worker = worker_of(monkeypatch, FakeDecoder())
    monkeypatch.setattr(worker_module, "load_model", refuse)
    with pytest.raises(ConfigError, match=r"out of GPU memory while the weights were loaded: 2.50 GiB asked for"):
        worker.load_model()


def test_a_cache_that_does_not_fit_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(monkeypatch, FullDecoder("cache"))
    with pytest.raises(ConfigError, match=r"out of GPU memory for a KV cache of 7 blocks: 2.50 GiB asked for"):
        worker.initialize_cache(7)


def test_a_warm_up_that_does_not_fit_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(monkeypatch, FullDecoder("forward"))
    worker.initialize_cache(40)
    with pytest.raises(ConfigError, match=r"out of GPU memory in the warm-up.* the KV cache 1280 bytes"):
        worker.warm_up()


@pytest.mark.parametrize("what", ["forward", "logits"])
def test_a_step_that_does_not_fit_fails_alone_with_the_numbers(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    model = FullDecoder()
    worker = worker_of(monkeypatch, model)
    worker.initialize_cache(7)
    model.fails = (what,)
    with pytest.raises(
        OutOfGpuMemoryError, match=r"out of GPU memory in a step: 2\.50 GiB asked for, 1\.00 GiB of"
    ):
        run(worker, plan())
    model.fails = ()
    assert run(worker, plan()._replace(released_ids=["a"])).request_ids == ["a"]


def test_among_several_ranks_it_ends_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FullDecoder("forward")
    worker = worker_of(monkeypatch, model)
    worker.initialize_cache(7)
    group: Any = object()
    worker._group = group
    with pytest.raises(OutOfStepError, match="out of GPU memory in a step"):
        worker.execute_model(plan())


def test_the_cache_gets_what_the_largest_step_graphs_and_others_leave() -> None:
    memory = FakeMemory(total=1000, free=600, num_reserved=300, highest=250)
    config = fake_config(gpu_memory_utilization=0.9)
    outside = 1000 - 600 - 300
    assert cuda_cache_budget(config, FakeDecoder(), memory, 0) == 900 - outside - 250
    assert cuda_cache_budget(config, FakeDecoder(), memory, 120) == 900 - outside - 250 - 120
    given = replace(config, cache=replace(config.cache, kv_cache_memory_bytes=10))
    assert cuda_cache_budget(given, FakeDecoder(), memory, 120) == 1000 - outside - 250 - 120
    assert cuda_cache_budget(config, FakeDecoder(), replace(memory, highest=2000), 0) == 0
