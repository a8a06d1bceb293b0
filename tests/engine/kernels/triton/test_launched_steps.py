"""Steps are queued without a wait, may be answered late, and are timed a step later; their tokens are the same."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_device import STEP_MS, FakeDevice
from paged_runner import load_torch, model_config
from plan_driver import Driver
from tiny_models import TINY_CONFIG, random_tensors, write_model
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.kernels.triton.launch import Launch
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.worker.flight import Flight
from vllm_obs.engine.worker.model_runner import ModelRunner

NUM_BLOCKS = 60
SPECS = [
    SamplingSpec(temperature=0.0),
    SamplingSpec(temperature=0.9, seed=1, logprobs=1),
    SamplingSpec(temperature=1.1, top_p=0.8, top_k=10, seed=2, prompt_logprobs=2),
    SamplingSpec(temperature=0.0, min_tokens=3, eos_token_ids=(5,), logit_bias=((7, 2.0),), logprobs=40),
]


@pytest.fixture
def config(tmp_path: Path) -> VllmConfig:
    values = TINY_CONFIG | {"num_hidden_layers": 1}
    found = model_config(write_model(tmp_path, values, random_tensors(values)))
    return replace(found, model=replace(found.model, max_model_len=48), cache=replace(found.cache, block_size=4))


@pytest.fixture
def runner(config: VllmConfig) -> ModelRunner:
    decoder = TritonDecoder.over(load_torch(config.model.path), TritonCard(configs_for(90), num_processors=1))
    return ModelRunner(config, decoder, decoder.allocate_kv_cache(NUM_BLOCKS, 4), port=FakeDevice())


def torch_runner(config: VllmConfig) -> ModelRunner:
    plain = load_torch(config.model.path)
    return ModelRunner(config, plain, plain.allocate_kv_cache(NUM_BLOCKS, 4))


def filled(runner: Any, specs: list[SamplingSpec] = SPECS) -> Driver:
    driver = Driver(runner, NUM_BLOCKS, 4)
    for row, spec in enumerate(specs):
        driver.add(str(row), list(range(3, 5 + row)), spec, 2 + row % 2)
    return driver


READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2")
"""Operations that cannot go on before the device has come to them."""


class NoReads(TorchDispatchMode):
    """Fails on whatever would wait for a device."""

    is_off = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled: to say so torch would import all that compiles."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert self.is_off or name not in READS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def no_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """But within a kernel, which the interpreter runs on the host."""
    run, mode = Launch.run, NoReads()

    def interpreted(launch: Launch) -> None:
        mode.is_off = True
        run(launch)
        mode.is_off = False

    with monkeypatch.context() as patch, mode:
        patch.setattr(Launch, "run", interpreted)
        yield


class Ahead:
    """Asks for the answer of a step when the next one has been queued.

    The driver must know it before: it is told by another runner, of torch's operations, answered at once. That is
    what this one must come to. `watch` is around all that may not wait.
    """

    def __init__(self, runner: ModelRunner, told: ModelRunner) -> None:
        self.runner, self.told = runner, told
        self.watch: Callable[[], AbstractContextManager[None]] = nullcontext
        self.waiting: Flight | None = None
        self.expected: list[ModelRunnerOutput] = []
        self.found: list[ModelRunnerOutput] = []

    def execute_model(self, plan: StepPlan) -> None:
        self.told.execute_model(plan)
        with self.watch():
            self.runner.execute_model(plan)

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        output = self.told.sample_tokens(masks)
        self.expected.append(output)
        with self.watch():
            flight = self.runner.launch_sampling(masks)
        self.finish()
        self.waiting = flight
        return output

    def finish(self) -> None:
        if self.waiting is not None:
            self.found.append(self.runner.answer(self.waiting))
        self.waiting = None


def told(output: ModelRunnerOutput) -> tuple[Any, ...]:
    logprobs = [
        (name, one.token_ids.tolist(), one.ranks.tolist())
        for name, one in (*output.logprobs, *output.prompt_logprobs)
    ]
    return output.step, output.request_ids, output.token_ids, logprobs, output.failed


@pytest.fixture
def ahead(config: VllmConfig, runner: ModelRunner) -> Ahead:
    return Ahead(runner, torch_runner(config))


def test_what_would_wait_for_a_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="_local_scalar_dense waits for the device"), no_reads(monkeypatch):
        torch.ones(1).item()


def test_answers_taken_a_step_late_are_those_taken_at_once_and_nothing_reads_from_the_device_before(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead.watch = lambda: no_reads(monkeypatch)
    filled(ahead).run_all(chunk=3)
    ahead.finish()
    assert [told(output) for output in ahead.found] == [told(output) for output in ahead.expected]
    assert any(output.prompt_logprobs for output in ahead.found)


def test_stalls_and_releases_between_steps_change_nothing(ahead: Ahead) -> None:
    driver, random = filled(ahead, SPECS[1:]), np.random.default_rng(3)
    while names := driver.unfinished():
        if random.random() < 0.2:
            driver.preempt(str(random.choice(names)))
        chosen = [name for name in names if random.random() < 0.7]
        driver.run({name: int(random.integers(1, 5)) for name in chosen})
    ahead.finish()
    assert [told(output) for output in ahead.found] == [told(output) for output in ahead.expected]


def test_rows_that_are_sampled_by_what_they_generated_have_it_first(ahead: Ahead) -> None:
    specs = [
        SamplingSpec(temperature=0.0, frequency_penalty=1.0),
        SamplingSpec(bad_words_ids=((7,), (1, 2)), seed=5),
    ]
    filled(ahead, specs).run_all()
    ahead.finish()
    assert [told(output) for output in ahead.found] == [told(output) for output in ahead.expected]


def test_no_step_waits_and_each_is_timed_in_the_next(runner: ModelRunner) -> None:
    driver = filled(runner, SPECS[:2])
    device: Any = runner._port
    steps, device_ns = [], []
    while names := driver.unfinished():
        device.calls.clear()
        driver.run(dict.fromkeys(names, 100))
        steps.append(list(device.calls))
        device_ns.append(runner.take_execution().device_ns)
    assert steps[0] == ["upload", "event 0", "upload", "download", "event 1", "wait"]
    for number, calls in enumerate(steps[1:], 1):
        first = 2 * number
        assert calls == [
            "upload",
            f"read event {first - 2} to {first - 1}",
            f"event {first}",
            "upload",
            "download",
            f"event {first + 1}",
            "wait",
        ]
    assert device_ns == [0] + [round(STEP_MS * 1e6)] * (len(steps) - 1)
