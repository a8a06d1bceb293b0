"""A runner over a fake decoder, and plans for it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_decoder import FakeDecoder, fake_config
from plan_driver import Driver

from vllm_obs.engine.worker.model_runner import ModelRunner

NewDriver = Callable[..., Driver]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fake_model() -> FakeDecoder:
    return FakeDecoder()


@pytest.fixture
def new_driver(fake_model: FakeDecoder) -> NewDriver:
    """Makes a driver over a runner of its own; all share the fake model."""

    def make(num_blocks: int = 200, seed: int = 0, **changes: Any) -> Driver:
        config = fake_config(**changes)
        block_size = config.cache.block_size
        runner = ModelRunner(config, fake_model, fake_model.allocate_kv_cache(num_blocks, block_size))
        return Driver(runner, num_blocks, block_size, seed)

    return make
