"""The default model, driven by hand-made plans, gives the reference's tokens however the steps are cut."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from default_model import default_config
from fake_decoder import FakeDecoder, fake_config
from plan_driver import Driver

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.group_setup import OutOfStepError, PeerLostError
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.worker import placement
from vllm_obs.engine.worker import worker as worker_module
from vllm_obs.engine.worker.memory_parts import memory_parts
from vllm_obs.engine.worker.worker import Worker

REFERENCES = Path(__file__).parents[2] / "data" / "smollm2_greedy.json"
NUM_BLOCKS, NUM_TOKENS = 128, 24


@pytest.fixture(scope="module")
def references() -> list[dict[str, Any]]:
    """Prompts with the greedy tokens and log-probabilities of another implementation in float32."""
    every: list[dict[str, Any]] = json.loads(REFERENCES.read_text())
    return sorted(every, key=lambda one: len(one["prompt_token_ids"]))[:6]


@pytest.fixture(scope="module")
def default_worker() -> Iterator[Worker]:
    config = default_config()
    worker = Worker(replace(config, model=replace(config.model, max_model_len=256)))
    worker.load_model()
    worker.initialize_cache(NUM_BLOCKS)
    worker.warm_up()
    yield worker
    worker.shutdown()


@pytest.mark.parametrize("chunk", [7, 1000])
def test_greedy_tokens_and_logprobs_are_the_reference_s(
    default_worker: Worker, references: list[dict[str, Any]], chunk: int
) -> None:
    driver = Driver(default_worker, NUM_BLOCKS, default_worker.config.cache.block_size, seed=chunk)
    for place, one in enumerate(references):
        driver.add(str(place), one["prompt_token_ids"], SamplingSpec(temperature=0.0, logprobs=0), NUM_TOKENS)
    outputs = driver.run_all(chunk)
    driver.run({})
    for place, one in enumerate(references):
        assert outputs[str(place)] == one["output_token_ids"][:NUM_TOKENS]
        found = [logprobs.logprobs[0, 0] for logprobs in driver.logprobs[str(place)]]
        assert found == pytest.approx(one["logprobs"][:NUM_TOKENS], abs=1e-3)


def test_limits_are_measured_with_the_models_own_kernels(default_worker: Worker) -> None:
    weights = memory_parts(default_worker).ranges["weights"]
    limits = default_worker.machine_limits(weights)
    assert limits.dtype == "float32"
    assert limits.flops_per_second > 0
    assert limits.bytes_per_second > 0


def test_warm_up_leaves_no_row(default_worker: Worker) -> None:
    default_worker.warm_up()
    assert default_worker.runner.input_batch.num_rows == 0


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(worker_module, "load_model", lambda *_: FakeDecoder())
    worker = Worker(fake_config())
    worker.load_model()
    return worker


def test_warm_up_fits_a_cache_of_one_block(fake_worker: Worker) -> None:
    fake_worker.initialize_cache(1)
    fake_worker.warm_up()
    assert fake_worker.runner.input_batch.num_rows == 0


def test_a_cache_that_cannot_be_allocated_is_a_config_error(
    fake_worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise MemoryError

    monkeypatch.setattr(fake_worker.model, "allocate_kv_cache", refuse)
    with pytest.raises(ConfigError, match=r"a KV cache of 7 blocks \(224 bytes\) could not be allocated"):
        fake_worker.initialize_cache(7)


def test_threads_are_a_rank_s_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(placement, "usable_cores", lambda: 4)
    torch.set_num_threads(8)
    Worker(fake_config(world_size=2))
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    Worker(fake_config(world_size=4))
    assert torch.get_num_threads() == 3


def test_an_error_between_exchanges_ends_the_rank_and_alone_only_the_step(fake_worker: Worker) -> None:
    fake_worker.initialize_cache(4)
    raised: list[Exception] = [RuntimeError("odd"), RuntimeError("odd"), PeerLostError("gone", [1])]

    def fail(*_: object) -> None:
        raise raised.pop(0)

    fake_worker.runner.model.forward = fail  # type: ignore[method-assign]
    row = NewRow("a", np.arange(3, dtype=np.int32), 3, SamplingSpec(), [0], 0)
    plan = StepPlan(1, [row], [], [], [], [], [3], [])
    with pytest.raises(RuntimeError, match="odd"):
        fake_worker.execute_model(plan)
    fake_worker._group = cast(Any, object())
    with pytest.raises(OutOfStepError, match="RuntimeError in the middle of a step"):
        fake_worker.execute_model(plan)
    with pytest.raises(PeerLostError, match="gone"):
        fake_worker.execute_model(plan)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_device_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="torch finds no CUDA device here"):
        Worker(fake_config(device="cuda"))
