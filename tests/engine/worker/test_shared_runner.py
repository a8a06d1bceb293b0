"""Model runners of several ranks, driven by the same plans: one answers, as one alone would."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paged_runner import model_config
from plan_driver import Driver
from thread_peers import ThreadRanks
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.config import CacheConfig, ParallelConfig, VllmConfig
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model.loader import load_plain
from vllm_obs.engine.model.weights import open_weights
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.sampling import each_row
from vllm_obs.engine.worker import prompt_scores
from vllm_obs.engine.worker.model_runner import ModelRunner

NUM_BLOCKS, BLOCK_SIZE = 60, 4
PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [5], list(range(20, 50)))


class SharedRunners:
    """All ranks' runners, each in a thread; followers say nothing but when they did their part."""

    def __init__(self, config: VllmConfig, num_shards: int, num_stages: int) -> None:
        parallel = ParallelConfig("mp", num_shards * num_stages, num_shards, num_stages)
        config = replace(config, parallel=parallel)
        self.ranks = ThreadRanks(num_shards, num_stages)
        self.runners = []
        for rank, place in enumerate(self.ranks.places):
            model = load_plain(config, open_weights(config.model), place)
            self.runners.append(ModelRunner(config, model, model.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE), rank))

    def execute_model(self, plan: StepPlan) -> None:
        self.ranks.run(lambda rank: self.runners[rank].execute_model(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        outputs = self.ranks.run(lambda rank: self.runners[rank].sample_tokens(masks))
        assert [output.moments[0].rank for output in outputs] == list(range(len(outputs)))
        for rank, output in enumerate(outputs):
            if rank != self.ranks.output_rank:
                assert output._replace(step=0, moments=[]) == ModelRunnerOutput(0, [], [], [], [], [], [])
        return outputs[self.ranks.output_rank]


@pytest.fixture
def config(tmp_path: Path) -> VllmConfig:
    found = model_config(write_model(tmp_path, TINY_CONFIG))
    scheduler = replace(found.scheduler, max_num_seqs=4)
    return replace(found, cache=CacheConfig(block_size=BLOCK_SIZE), scheduler=scheduler)


def run_all(runner: Any, chunk: int = 1000) -> Driver:
    driver = Driver(runner, NUM_BLOCKS, BLOCK_SIZE)
    for place, prompt in enumerate(PROMPTS):
        sampling = SamplingSpec(temperature=0.8, seed=place, logprobs=2, prompt_logprobs=1, max_tokens=6)
        driver.add(str(place), prompt, sampling, 6)
    while names := driver.unfinished():
        driver.run(dict.fromkeys(names, chunk), leave_token_to_worker=False)
    return driver


def alone(config: VllmConfig) -> ModelRunner:
    model = load_plain(config, open_weights(config.model))
    return ModelRunner(config, model, model.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE))


@pytest.mark.parametrize(("num_shards", "num_stages"), [(2, 1), (1, 3), (2, 2)])
def test_tokens_and_log_probabilities_are_those_of_one_rank(
    config: VllmConfig, num_shards: int, num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        prompt_scores, "PROMPT_LOGITS_BYTES", 5 * 4 * 96
    )  # a prompt's logits come in several pieces
    expected, found = run_all(alone(config)), run_all(SharedRunners(config, num_shards, num_stages), chunk=9)
    for name, sequence in expected.sequences.items():
        assert found.sequences[name].outputs == sequence.outputs
        pairs = [(expected.logprobs[name], found.logprobs[name])]
        if len(sequence.prompt) > 1:
            pairs.append((expected.prompt_logprobs[name], found.prompt_logprobs[name]))
        for wanted, given in pairs:
            both = [np.concatenate([part.logprobs for part in parts]) for parts in (wanted, given)]
            np.testing.assert_allclose(*both, atol=1e-4)


def fail_for(*rows: int) -> Callable[..., Any]:
    """A sampler that fails for batches of several rows, and alone for those of these numbers."""
    sample = each_row.sample

    def failing(logits: Any, batch: Any, masks: Any) -> Any:
        if len(batch.rows) > 1 or batch.request_ids[0] in map(str, rows):
            logits.zero_()  # what a sampler leaves behind
            raise RuntimeError("planted")
        return sample(logits, batch, masks)

    return failing


def test_a_row_that_cannot_be_sampled_keeps_the_ranks_in_step(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_all(alone(config))
    monkeypatch.setattr(each_row, "sample", fail_for(1))
    shared = SharedRunners(config, 2, 1)
    driver = Driver(shared, NUM_BLOCKS, BLOCK_SIZE)
    for place, prompt in enumerate(PROMPTS):
        driver.add(str(place), prompt, SamplingSpec(temperature=0.8, seed=place, max_tokens=6), 6)
    while names := [name for name in driver.unfinished() if name != "1"]:
        driver.run(dict.fromkeys([*names, "1"] if not driver.failed else names, 1000), leave_token_to_worker=False)
    assert [failure[0] for failure in driver.failed] == ["1"]
    for name in ("0", "2"):
        assert driver.sequences[name].outputs == expected.sequences[name].outputs


def test_a_prompt_without_numbers_keeps_the_ranks_in_step(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "PROMPT_LOGITS_BYTES", 5 * 4 * 96)
    shared = SharedRunners(config, 2, 2)
    for runner in shared.runners[:2]:
        model: Any = runner.model
        model.inlet._weight[20] = float("nan")  # of token 20, and of another in the second shard
    driver = Driver(shared, NUM_BLOCKS, BLOCK_SIZE)
    driver.add("odd", PROMPTS[2], SamplingSpec(prompt_logprobs=1, max_tokens=2), 2)
    driver.add("even", [5, 6, 7], SamplingSpec(prompt_logprobs=1, temperature=0.0, max_tokens=2), 2)
    driver.run({"odd": 1000, "even": 1000})
    assert {name for name, reason, _ in driver.failed} == {"odd"}
    driver.run({"even": 1}, leave_token_to_worker=False)
    assert len(driver.sequences["even"].outputs) == 2
