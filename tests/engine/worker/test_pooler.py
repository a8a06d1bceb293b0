"""Vectors of prompts are the same however their steps are cut, and what is not finite fails its own row."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fake_decoder import FakeDecoder, history
from plan_driver import Driver

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.messages import Float32Array, SamplingSpec
from vllm_obs.engine.model.interface import Progress, unwatched
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan
from vllm_obs.engine.worker.device_port import HostPort
from vllm_obs.engine.worker.model_runner import ModelRunner
from vllm_obs.engine.worker.pooler import BROKEN_STATES, Pooler
from vllm_obs.engine.worker.step_inputs import PoolSpan

NewDriver = Callable[..., Driver]

PROMPTS = [np.random.default_rng(row).integers(0, 64, 1 + 7 * row).tolist() for row in range(4)]
KINDS = ["mean", "last", "cls"]


class StatesDecoder(FakeDecoder):
    """Its hidden states are two numbers made of all tokens up to a position."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: object,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        return states(super().forward(token_ids, positions, batch, kv_cache, on_layer))  # type: ignore[arg-type]


def states(histories: torch.Tensor) -> torch.Tensor:
    return torch.stack([histories % 9973, histories % 97], dim=-1).float() / 1000


def expected(prompt: list[int], kind: str) -> list[float]:
    every = states(torch.tensor([history(prompt[:end]) for end in range(1, len(prompt) + 1)])).double()
    vector = {"mean": every.mean(0), "last": every[-1], "cls": every[0]}[kind]
    numbers: list[float] = vector.float().tolist()
    return numbers


@pytest.fixture
def fake_model() -> FakeDecoder:
    return StatesDecoder()


class Collector:
    """Between a driver and its runner: keeps the vectors."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.vectors: dict[str, Float32Array] = {}

    def execute_model(self, plan: StepPlan) -> None:
        self.runner.execute_model(plan)

    def sample_tokens(self, masks: None) -> ModelRunnerOutput:
        output = self.runner.sample_tokens(masks)
        assert not set(self.vectors) & {name for name, _ in output.pooled}
        self.vectors |= dict(output.pooled)
        return output


def filled(new_driver: NewDriver, **changes: int) -> tuple[Driver, Collector]:
    driver = new_driver(**changes)
    collector = Collector(driver.runner)  # type: ignore[arg-type]
    driver.runner = collector  # type: ignore[assignment]
    for kind in KINDS:
        for place, prompt in enumerate(PROMPTS):
            driver.add(f"{kind}{place}", prompt, SamplingSpec(max_tokens=0, pooling=kind), 1)
    return driver, collector


def check(collector: Collector) -> None:
    wanted = {f"{kind}{place}": expected(prompt, kind) for kind in KINDS for place, prompt in enumerate(PROMPTS)}
    assert {name: vector.tolist() for name, vector in collector.vectors.items()} == wanted
    assert collector.runner._pooler.num_held == 0


@pytest.mark.parametrize("chunk", [1, 3, 8, 1000])
def test_chunks_give_the_vectors_of_whole_prompts(new_driver: NewDriver, chunk: int) -> None:
    driver, collector = filled(new_driver, max_num_seqs=12)
    driver.run_all(chunk)
    check(collector)


@pytest.mark.parametrize("seed", range(3))
def test_stalls_and_preemptions_change_nothing(new_driver: NewDriver, seed: int) -> None:
    driver, collector = filled(new_driver, max_num_seqs=12, seed=seed)
    random = np.random.default_rng(seed)
    while names := driver.unfinished():
        if random.random() < 0.3:
            driver.preempt(str(random.choice(names)))
        chosen = [name for name in names if random.random() < 0.7]
        if chosen:
            driver.run({name: int(random.integers(1, 9)) for name in chosen})
    check(collector)


def test_no_logits_are_made_for_vectors(new_driver: NewDriver, fake_model: FakeDecoder) -> None:
    driver, _ = filled(new_driver, max_num_seqs=12)
    driver.run_all()
    assert fake_model.heads == []


def test_states_that_are_not_finite_fail_their_row_and_no_other() -> None:
    pooler = Pooler(HostPort())
    hidden = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3.0, 5.0]])
    good, bad = PoolSpan("good", "mean", 0, 1, 1, True), PoolSpan("bad", "mean", 1, 2, 2, True)
    pooled, failed = pooler.launch([bad, good], hidden).result()
    assert [(name, vector.tolist()) for name, vector in pooled] == [("good", [1.0, 2.0])]
    assert failed == [("bad", "invalid_logits", BROKEN_STATES)]


def test_what_is_held_of_a_prompt_goes_when_it_leaves() -> None:
    pooler = Pooler(HostPort())
    pooler.launch([PoolSpan("a", "mean", 0, 2, 9, False), PoolSpan("b", "cls", 0, 1, 9, False)], torch.ones(2, 3))
    assert pooler.num_held == 2
    pooler.forget(["a", "b", "unknown"])
    assert pooler.num_held == 0
