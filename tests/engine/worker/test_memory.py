"""The KV cache's size follows its bound, and what cannot be is refused with the numbers."""

import pytest
from fake_decoder import fake_config

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.worker.memory import GIB, cpu_cache_budget, size_kv_cache

MIB = 2**20


def test_half_of_the_free_memory_at_most_and_four_gib_at_most() -> None:
    assert cpu_cache_budget(fake_config(), 2 * GIB) == GIB
    assert cpu_cache_budget(fake_config(gpu_memory_utilization=0.25), 2 * GIB) == GIB // 2
    assert cpu_cache_budget(fake_config(), 100 * GIB) == 4 * GIB
    assert cpu_cache_budget(fake_config(world_size=2), 2 * GIB) == GIB // 2
    assert cpu_cache_budget(fake_config(data_parallel_size=4), 2 * GIB) == GIB // 4
    assert cpu_cache_budget(fake_config(data_parallel_size=4, data_parallel_rank=1), 2 * GIB) == GIB


def test_a_size_given_by_the_user_may_take_all_that_is_free() -> None:
    assert cpu_cache_budget(fake_config(kv_cache_memory_bytes=1), 100 * GIB) == 100 * GIB
    assert cpu_cache_budget(fake_config(num_gpu_blocks_override=1), 100 * GIB) == 100 * GIB


def test_no_more_blocks_than_the_sequences_can_use() -> None:
    config = fake_config(max_num_seqs=3, max_model_len=10, block_size=4)
    bound = "--max-num-seqs times --max-model-len"
    assert size_kv_cache(config, MIB, GIB) == KVCapacity(9, MIB, GIB, bound)


def test_free_memory_and_the_cap_bound_what_sequences_could_use() -> None:
    config = fake_config(max_num_seqs=1000)
    assert size_kv_cache(config, MIB, 100 * MIB + 1) == KVCapacity(100, MIB, 100 * MIB + 1, "free memory")
    assert size_kv_cache(config, MIB, 4 * GIB).bound == "the default cap of 4.00 GiB on a CPU"


def test_the_override_comes_before_the_bytes_and_these_before_the_rest() -> None:
    given = fake_config(kv_cache_memory_bytes=50 * MIB)
    assert size_kv_cache(given, MIB, GIB) == KVCapacity(50, MIB, GIB, "--kv-cache-memory-bytes")
    both = fake_config(kv_cache_memory_bytes=50 * MIB, num_gpu_blocks_override=30)
    assert size_kv_cache(both, MIB, GIB) == KVCapacity(30, MIB, GIB, "--num-gpu-blocks-override")


def test_less_than_one_sequence_is_refused_with_the_numbers() -> None:
    config = fake_config(max_model_len=96, block_size=4, kv_cache_memory_bytes=20 * MIB)
    with pytest.raises(ConfigError) as caught:
        size_kv_cache(config, MIB, GIB)
    assert str(caught.value) == (
        "one sequence of 96 tokens needs 24.00 MiB of KV cache, and there are 20.00 MiB (80 tokens); "
        "lower --max-model-len or raise --kv-cache-memory-bytes"
    )


def test_an_override_below_one_sequence_warns_and_is_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    capacity = size_kv_cache(fake_config(num_gpu_blocks_override=2), MIB, GIB)
    assert capacity.num_blocks == 2
    assert "holds 8 tokens, less than --max-model-len 96" in caplog.text


def test_an_override_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="one sequence of 96 tokens needs"):
        size_kv_cache(fake_config(num_gpu_blocks_override=0), MIB, GIB)


def test_more_than_is_free_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--num-gpu-blocks-override takes 2\.00 GiB, but 1\.00 GiB are free"):
        size_kv_cache(fake_config(num_gpu_blocks_override=2048), MIB, GIB)
