"""The runner with captured graphs gives the tokens of eager steps, and says of each step how it ran."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_device import FakeDevice
from fake_gpu_memory import FakeMemory
from fake_graphs import FakeGraph, FakeMaker, Work
from paged_runner import load_torch, model_config
from plan_driver import Driver
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.config import GraphConfig, ParallelConfig, VllmConfig
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder
from vllm_obs.engine.worker.execution import Execution
from vllm_obs.engine.worker.graph_set_up import LEAST_GRAPH_BYTES, GraphSetUp, why_no_graphs
from vllm_obs.engine.worker.model_runner import ModelRunner
from vllm_obs.engine.worker.worker import Worker

NUM_BLOCKS = 30
MIB = 2**20


@pytest.fixture
def config(tmp_path: Path) -> VllmConfig:
    values = TINY_CONFIG | {"num_hidden_layers": 1}
    found = model_config(write_model(tmp_path, values, random_tensors(values)))
    return replace(
        found,
        model=replace(found.model, max_model_len=48),
        cache=replace(found.cache, block_size=4),
        scheduler=replace(found.scheduler, max_num_seqs=8),
        graphs=GraphConfig(capture_sizes=(2,)),
    )


@pytest.fixture
def decoder(config: VllmConfig) -> TritonDecoder:
    return TritonDecoder.over(load_torch(config.model.path), TritonCard(configs_for(90), num_processors=1))


def driver_of(config: VllmConfig, decoder: TritonDecoder | Decoder, maker: FakeMaker | None = None) -> Driver:
    kv_cache = decoder.allocate_kv_cache(NUM_BLOCKS, config.cache.block_size)
    runner = ModelRunner(config, decoder, kv_cache, port=FakeDevice())
    if maker is not None:
        runner.graphs, _ = GraphSetUp(config, decoder, lambda: maker, FakeMemory()).captured(kv_cache)
    driver = Driver(runner, NUM_BLOCKS, config.cache.block_size)
    for row in range(3):
        spec = SamplingSpec(temperature=0.9 * (row % 2), seed=row)
        driver.add(str(row), [row + 3] * (row + 1), spec, 3 + 2 * row)
    return driver


def test_decode_steps_replay_the_smallest_graph_with_room_and_all_tokens_are_those_of_eager_steps(
    config: VllmConfig, decoder: TritonDecoder
) -> None:
    expected = driver_of(config, decoder.plain).run_all()
    maker = FakeMaker()
    driver = driver_of(config, decoder, maker)
    executions = []
    while names := driver.unfinished():
        driver.run(dict.fromkeys(names, 1000))
        executions.append(driver.runner.take_execution()._replace(device_ns=0))
    assert driver.run_all() == expected
    assert executions == [
        Execution(eager_reason="prompt_tokens"),
        Execution(eager_reason="batch_size"),
        Execution(eager_reason="batch_size"),
        Execution(2, 0, ""),
        Execution(2, 0, ""),
        Execution(2, 1, ""),
        Execution(2, 1, ""),
    ]
    assert maker.asked == [2]
    assert maker.replays == [2, 2, 2, 2]


def test_a_worker_captures_in_its_warm_up_and_replays_its_first_decode(config: VllmConfig) -> None:
    worker = Worker(replace(config, model=replace(config.model, attention_backend="triton")))
    worker.load_model()
    maker = FakeMaker()
    worker._graph_set_up = GraphSetUp(worker.config, worker.model, lambda: maker, FakeMemory())
    worker.initialize_cache(2)
    assert (maker.asked, worker.runner.graphs) == ([], None)
    worker.warm_up()
    assert (maker.asked, maker.replays) == ([2], [2])
    assert worker.take_execution() == Execution(2, 1, "")
    worker.shutdown()


def test_a_runner_without_graphs_says_why(config: VllmConfig, decoder: TritonDecoder) -> None:
    driver = driver_of(config, decoder)
    driver.runner.eager_reason = "enforce_eager"
    driver.run({"0": 1})
    assert driver.runner.take_execution() == Execution(0, 0, "enforce_eager")
    assert driver.runner.take_execution() == Execution(), "it was told"


def test_there_are_graphs_on_gpus_with_kernels_unless_eager_is_enforced(
    config: VllmConfig, decoder: TritonDecoder
) -> None:
    assert why_no_graphs(config, decoder) == "no_gpu"
    gpu = replace(config, model=replace(config.model, device="cuda"))
    assert why_no_graphs(gpu, decoder) == ""
    assert why_no_graphs(gpu, decoder.plain) == "attention_backend"
    assert why_no_graphs(replace(gpu, parallel=ParallelConfig("mp", 2, 2)), decoder) == ""
    assert why_no_graphs(replace(gpu, graphs=GraphConfig(enforce_eager=True)), decoder) == "enforce_eager"


class GrowingMaker:
    """Takes of the memory what a test says for each capture, and once for libraries; runs nothing."""

    def __init__(self, memory: FakeMemory, takes: list[int]) -> None:
        self.memory, self.takes, self.has_libraries = memory, takes, False

    def rehearse(self, work: Work) -> None:
        self.memory.free -= 40 * MIB if not self.has_libraries else 0
        self.has_libraries = True

    def capture(self, work: Work) -> tuple[FakeGraph, torch.Tensor]:
        self.memory.free -= self.takes.pop(0)
        return FakeGraph(work, [], 0), torch.empty(0)


def test_the_memory_of_all_graphs_is_told_from_the_first_two(config: VllmConfig, decoder: TritonDecoder) -> None:
    memory = FakeMemory(total=1000 * MIB, free=700 * MIB)
    set_up = GraphSetUp(
        replace(config, graphs=GraphConfig()), decoder, lambda: GrowingMaker(memory, [90 * MIB, 5 * MIB]), memory
    )
    assert set_up.sizes == [1, 2, 4, 8]
    assert set_up.bytes_needed() == (90 + 3 * 5) * MIB
    free = replace(set_up, make_maker=lambda: GrowingMaker(memory, [90 * MIB, 0]))
    assert free.bytes_needed() == 90 * MIB + 3 * LEAST_GRAPH_BYTES
    memory.free = 700 * MIB
    taken = replace(set_up, make_maker=lambda: GrowingMaker(memory, [90 * MIB, 5 * MIB, MIB, MIB]))
    graphs, num_bytes = taken.captured(decoder.allocate_kv_cache(2, 4))
    assert (graphs.sizes, num_bytes) == ([1, 2, 4, 8], (97 + 40) * MIB)


def test_graphs_that_cannot_be_captured_are_given_no_memory(config: VllmConfig, decoder: TritonDecoder) -> None:
    broken = FakeMaker(failure=RuntimeError("not permitted"))
    assert GraphSetUp(config, decoder, lambda: broken, FakeMemory()).bytes_needed() == 0
    assert broken.asked == [2]


def test_sizes_end_at_the_largest_that_was_asked_for(config: VllmConfig, decoder: TritonDecoder) -> None:
    def sizes(graphs: GraphConfig) -> list[int]:
        return GraphSetUp(replace(config, graphs=graphs), decoder, FakeMaker, FakeMemory()).sizes

    assert sizes(GraphConfig(max_capture_size=6)) == [1, 2, 4, 6]
    assert sizes(GraphConfig(capture_sizes=(1, 3, 20), max_capture_size=6)) == [1, 3]


def test_every_number_of_splits_is_warmed_without_a_write(config: VllmConfig, decoder: TritonDecoder) -> None:
    large = TritonDecoder.over(decoder.plain, TritonCard(decoder.card.configs, num_processors=64))
    kv_cache = large.allocate_kv_cache(2, 4)
    large.warm_decodes(kv_cache, 300)
    assert all(not torch.any(layer) for layer in kv_cache.layers)
