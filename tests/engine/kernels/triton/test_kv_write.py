"""Keys and values reach their slots, and nothing else in the cache changes."""

import pytest
import torch
from guarded import Guarded
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, one_config

from vllm_obs.engine.kernels.triton.attention_reference import reference_kv_write
from vllm_obs.engine.kernels.triton.kv_write import kv_write

SCALES = (0.25, 3.0)
CONFIGS = one_config("kv_write")


def check(shape: tuple[int, int, int, int], slots: list[int], source: torch.dtype, stored: torch.dtype) -> None:
    """To the bit; shape is (blocks, kv_heads, block_size, head_dim)."""
    num_blocks, kv_heads, block_size, head_dim = shape
    rows = torch.randn(len(slots), 2 * kv_heads * head_dim + 3).to(source)  # as the tail of longer rows
    keys, values = rows[:, 3:].unflatten(-1, (2, kv_heads, head_dim)).unbind(1)
    cache = Guarded(num_blocks, 2, kv_heads, block_size, head_dim, dtype=stored)
    expected = cache.tensor.clone()
    numbers = torch.tensor(slots, dtype=torch.int64)
    kv_write(keys, values, numbers, cache.tensor, CONFIGS, SCALES).run()
    reference_kv_write(keys, values, numbers, expected, SCALES)
    cache.check_guards()
    off = (_bits(cache.tensor) - _bits(expected)).abs().max()
    # The interpreter cuts bfloat16 off where a card rounds it.
    assert off <= (1 if stored == torch.bfloat16 != source else 0)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize]).long()


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "fp8"])
def test_each_type_into_each(source: str, stored: str) -> None:
    check((4, 3, 4, 16), [5, -1, 0, 15, 10], DTYPES[source], DTYPES[stored])


def test_no_tokens_change_nothing() -> None:
    check((2, 1, 4, 16), [], torch.float32, torch.float32)


@settings(max_examples=10, deadline=None, database=None)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 3, 16]), st.sampled_from([2, 24, 64])),
    st.randoms(use_true_random=False),
    st.sampled_from(sorted(DTYPES)),
)
def test_any_shape(shape, random, stored) -> None:  # type: ignore[no-untyped-def]
    slots = list(range(shape[0] * shape[2]))
    random.shuffle(slots)
    slots = [slot if random.random() < 0.9 else -1 for slot in slots[: random.randint(0, len(slots))]]
    check(shape, slots, torch.float32, DTYPES[stored])
