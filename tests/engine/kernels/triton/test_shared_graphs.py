"""Several ranks replay graphs in step: shards with their exchanges within, stages with theirs around them."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_device import FakeDevice
from fake_gpu_memory import FakeMemory
from fake_graphs import FakeMaker
from paged_runner import load_torch, model_config
from plan_driver import Driver
from thread_peers import ThreadRanks
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.config import GraphConfig, ParallelConfig, VllmConfig
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.kernels.triton.launch import Launch
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model.loader import load_plain
from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder
from vllm_obs.engine.model.weights import open_weights
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.worker.execution import Execution
from vllm_obs.engine.worker.graph_captures import Shards
from vllm_obs.engine.worker.graph_set_up import GraphSetUp
from vllm_obs.engine.worker.model_runner import ModelRunner

NUM_BLOCKS, BLOCK_SIZE = 30, 4


@pytest.fixture(autouse=True)
def one_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter runs one kernel at a time, whoever launches it."""
    run, lock = Launch.run, threading.Lock()

    def alone(launch: Launch) -> None:
        with lock:
            run(launch)

    monkeypatch.setattr(Launch, "run", alone)


def config_of(tmp_path: Path, num_layers: int) -> VllmConfig:
    values = TINY_CONFIG | {"num_hidden_layers": num_layers}
    found = model_config(write_model(tmp_path, values, random_tensors(values)))
    return replace(
        found,
        model=replace(found.model, max_model_len=48),
        cache=replace(found.cache, block_size=BLOCK_SIZE),
        scheduler=replace(found.scheduler, max_num_seqs=4),
        graphs=GraphConfig(capture_sizes=(2,)),
    )


class GraphRanks:
    """All ranks' runners with graphs, each in a thread; the last `execution` of each."""

    def __init__(self, config: VllmConfig, num_shards: int, num_stages: int) -> None:
        config = replace(config, parallel=ParallelConfig("mp", num_shards * num_stages, num_shards, num_stages))
        self.ranks = ThreadRanks(num_shards, num_stages)
        self.makers = [FakeMaker() for _ in self.ranks.places]
        self.executions: list[list[Execution]] = []
        self.runners = self.ranks.run(lambda rank: self._runner(config, rank, num_shards))

    def _runner(self, config: VllmConfig, rank: int, num_shards: int) -> ModelRunner:
        place = self.ranks.places[rank]
        plain = load_plain(config, open_weights(config.model), place)
        model = TritonDecoder.over(plain, TritonCard(configs_for(90), num_processors=1))
        kv_cache = model.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE)
        runner = ModelRunner(config, model, kv_cache, rank, port=FakeDevice())
        shards = Shards.of(place.peers, num_shards, torch.device("cpu"))
        set_up = GraphSetUp(config, model, lambda: self.makers[rank], FakeMemory(), shards)
        set_up.bytes_needed()
        runner.graphs, _ = set_up.captured(kv_cache)
        return runner

    def execute_model(self, plan: StepPlan) -> None:
        self.ranks.run(lambda rank: self.runners[rank].execute_model(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        outputs = self.ranks.run(lambda rank: self.runners[rank].sample_tokens(masks))
        self.executions.append([runner.take_execution()._replace(device_ns=0) for runner in self.runners])
        return outputs[self.ranks.output_rank]


def run_all(runner: object) -> Driver:
    driver = Driver(runner, NUM_BLOCKS, BLOCK_SIZE)  # type: ignore[arg-type]
    for row in range(2):
        driver.add(str(row), [row + 3] * (row + 1), SamplingSpec(temperature=0.9 * row, seed=row), 2 + row)
    while names := driver.unfinished():
        driver.run(dict.fromkeys(names, 1000), leave_token_to_worker=False)
    return driver


@pytest.mark.parametrize(("num_shards", "num_stages"), [(2, 1), (1, 2)])
def test_ranks_that_replay_give_the_tokens_of_one_rank(tmp_path: Path, num_shards: int, num_stages: int) -> None:
    config = config_of(tmp_path, num_stages)
    plain = load_torch(config.model.path)
    expected = run_all(ModelRunner(config, plain, plain.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE)))
    shared = GraphRanks(config, num_shards, num_stages)
    found = run_all(shared)
    for name, sequence in expected.sequences.items():
        assert found.sequences[name].outputs == sequence.outputs
    for maker in shared.makers:
        assert (maker.num_rehearsed, maker.asked) == (3, [2, 2]), "a trial and its rehearsal, and the real one"
        assert maker.replays == [2, 2], "a step of two rows, and one of one row"
    assert [{each.graph_size for each in step} for step in shared.executions] == [{0}, {2}, {2}]
    assert shared.executions[-1] == [Execution(2, 1, "")] * len(shared.makers)
