"""Decode steps replayed over fixed buffers give what eager ones give, with padding and without."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fake_graphs import FakeMaker
from paged_runner import load_torch
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.kernels.triton.launch import WATCH
from vllm_obs.engine.kernels.triton.launch_work import LaunchWork
from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder
from vllm_obs.engine.worker.decode_graphs import DecodeGraphs, GraphLimits
from vllm_obs.engine.worker.graph_captures import Captures

BLOCK_SIZE, MAX_LEN = 4, 16


@pytest.fixture
def decoder(tmp_path: Path) -> TritonDecoder:
    values = TINY_CONFIG | {"num_hidden_layers": 1}
    write_model(tmp_path, values, random_tensors(values))
    return TritonDecoder.over(load_torch(tmp_path), TritonCard(configs_for(90), num_processors=1))


def _step(num_rows: int) -> tuple[torch.Tensor, torch.Tensor, AttentionBatch]:
    positions = torch.randint(0, MAX_LEN, (num_rows,))
    tables = torch.arange(1, 4 * num_rows + 1).view(num_rows, 4)
    slots = tables[torch.arange(num_rows), positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    order = torch.randperm(num_rows)
    batch = AttentionBatch(num_rows, [1] * num_rows, (positions + 1).tolist(), tables, slots, order)
    return torch.randint(0, 96, (num_rows,)), positions, batch


@contextmanager
def launches() -> Iterator[list[LaunchWork]]:
    """What is launched meanwhile, as a profile is told of it."""
    seen: list[LaunchWork] = []
    WATCH.seen = seen.append
    yield seen
    WATCH.seen = None


def test_a_replay_gives_the_hidden_states_and_the_cache_of_an_eager_step(decoder: TritonDecoder) -> None:
    caches = [decoder.allocate_kv_cache(21, BLOCK_SIZE) for _ in range(2)]
    for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
        other.copy_(one.normal_())
    graphs = DecodeGraphs(decoder, caches[1], GraphLimits(5, MAX_LEN, BLOCK_SIZE), Captures(FakeMaker()))
    graphs.capture([1, 4, 5])
    assert graphs.sizes == [1, 4, 5]
    for num_rows in (5, 3, 1):  # a smaller batch after a larger one: nothing of the larger may stay
        token_ids, positions, batch = _step(num_rows)
        with launches() as eager:
            expected = decoder.forward(token_ids, positions, batch, caches[0])
        use = graphs.choose(batch)
        assert use.num_padded == (1 if num_rows == 3 else 0)
        with launches() as replayed:
            found = graphs.run(use, token_ids, positions, batch)
        assert [work.kernel for work in replayed] == [work.kernel for work in eager]
        if not use.num_padded:
            assert replayed == eager
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
            torch.testing.assert_close(other, one)
