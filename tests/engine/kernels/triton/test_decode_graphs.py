"""Decode steps replayed over fixed buffers give what eager ones give, with padding and without."""

from pathlib import Path

import pytest
import torch
from fake_graphs import FakeMaker
from paged_runner import load_torch
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder
from vllm_obs.engine.worker.decode_graphs import DecodeGraphs, GraphLimits
from vllm_obs.engine.worker.graph_buckets import bucket_sizes

BLOCK_SIZE, MAX_LEN = 4, 16


@pytest.fixture
def decoder(tmp_path: Path) -> TritonDecoder:
    values = TINY_CONFIG | {"num_hidden_layers": 1}
    write_model(tmp_path, values, random_tensors(values))
    return TritonDecoder.over(load_torch(tmp_path), TritonCard(configs_for(90), num_processors=1))


def _graphs(decoder: TritonDecoder, maker: FakeMaker, cache: object) -> DecodeGraphs:
    graphs = DecodeGraphs(decoder, cache, GraphLimits(5, MAX_LEN, BLOCK_SIZE), maker)
    graphs.capture(bucket_sizes(5))
    return graphs


def _step(num_rows: int) -> tuple[torch.Tensor, torch.Tensor, AttentionBatch]:
    positions = torch.randint(0, MAX_LEN, (num_rows,))
    tables = torch.arange(1, 4 * num_rows + 1).view(num_rows, 4)
    slots = tables[torch.arange(num_rows), positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    order = torch.randperm(num_rows)
    batch = AttentionBatch(num_rows, [1] * num_rows, (positions + 1).tolist(), tables, slots, order)
    return torch.randint(0, 96, (num_rows,)), positions, batch


def test_a_replay_gives_the_hidden_states_and_the_cache_of_an_eager_step(decoder: TritonDecoder) -> None:
    caches = [decoder.allocate_kv_cache(21, BLOCK_SIZE) for _ in range(2)]
    for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
        other.copy_(one.normal_())
    graphs = _graphs(decoder, FakeMaker(), caches[1])
    for num_rows in (5, 3, 1, 4):  # a smaller batch after a larger one: nothing of the larger may stay
        token_ids, positions, batch = _step(num_rows)
        expected = decoder.forward(token_ids, positions, batch, caches[0])
        use = graphs.choose(batch)
        assert use.num_padded == (1 if num_rows == 3 else 0)
        found = graphs.run(use, token_ids, positions, batch)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
            torch.testing.assert_close(other, one)


def test_the_largest_graph_is_captured_first(decoder: TritonDecoder) -> None:
    maker = FakeMaker()
    graphs = _graphs(decoder, maker, decoder.allocate_kv_cache(2, BLOCK_SIZE))
    assert maker.asked == [5, 4, 2, 1]
    assert graphs.sizes == [1, 2, 4, 5]


def test_a_size_without_room_is_left_out_and_named(
    decoder: TritonDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = _graphs(decoder, FakeMaker(num_rows=3), decoder.allocate_kv_cache(2, BLOCK_SIZE))
    assert graphs.sizes == [1, 2]
    assert "No CUDA graph for 5 rows" in caplog.text
    assert graphs.choose(_step(4)[2]).reason == "batch_size"


def test_a_capture_that_fails_otherwise_leaves_no_graph_and_says_why_once(
    decoder: TritonDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    maker = FakeMaker(failure=RuntimeError("operation not permitted"))
    graphs = _graphs(decoder, maker, decoder.allocate_kv_cache(2, BLOCK_SIZE))
    assert (maker.asked, graphs.sizes) == ([5], [])
    (said,) = caplog.messages
    assert "every step runs eagerly: a capture of 5 rows failed with RuntimeError: operation not permitted" in said
    assert graphs.choose(_step(1)[2]).reason == "capture_failed"
