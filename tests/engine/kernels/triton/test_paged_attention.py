"""Attention over the paged cache equals float64 for ragged rows of any shape."""

import pytest
import torch
from guarded import Guarded
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, TOLERANCES, CacheCase, cache_case, one_config

from vllm_obs.engine.kernels.triton.attention_reference import reference_attention
from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.paged_attention import (
    AttentionShape,
    SplitBuffers,
    num_splits_for,
    paged_attention,
)
from vllm_obs.engine.kernels.triton.split_reduction import split_reduction

CPU = torch.device("cpu")

CONFIGS = one_config("paged_attention", block_m=16, block_n=16)


def check(
    case: CacheCase, shape: AttentionShape, dtype: torch.dtype, configs: Configs, num_splits: int = 1
) -> None:
    """The kernel's output is that of the reference, with nothing else written and no splits left out."""
    queries = torch.randn(case.num_tokens, shape.num_heads * shape.head_dim).to(dtype)
    output = Guarded(*queries.shape, dtype=dtype)
    splits = SplitBuffers.of(case.num_tokens, shape, num_splits, CPU) if num_splits > 1 else None
    if splits is not None:
        splits.sums.fill_(torch.nan)
        splits.stats.fill_(torch.nan)
    paged_attention(queries, case.layer_cache, output.tensor, case.rows, shape, configs, splits).run()
    if splits is not None:
        assert output.poisoned(output.tensor).all()
        split_reduction(splits, output.tensor, one_config("split_reduction")).run()
    expected = reference_attention(queries, case.layer_cache, case.rows, shape)
    difference = (output.whole().double() - expected).abs() / (1.0 + expected.abs())
    assert difference.max() <= TOLERANCES[dtype]


@pytest.mark.parametrize("stored", DTYPES)
def test_prompts_chunks_and_decodes_in_one_launch(stored: str) -> None:
    shape = AttentionShape(6, 2, 32, 32**-0.5, key_scale=0.5, value_scale=2.0)
    case = cache_case([(1, 6), (0, 0), (5, 4), (1, 39), (20, 13), (7, 0)], shape, 8, DTYPES[stored])
    check(case, shape, torch.float32 if stored == "fp8" else DTYPES[stored], CONFIGS)


@pytest.mark.parametrize("has_native_fp8", [False, True])
def test_fp8_codes_serve_16_bit_queries(has_native_fp8: bool) -> None:
    shape = AttentionShape(4, 1, 16, 0.25, key_scale=0.25, value_scale=4.0, has_native_fp8=has_native_fp8)
    check(cache_case([(3, 20), (1, 2)], shape, 4, torch.uint8), shape, torch.float16, CONFIGS)


def test_a_window_and_a_soft_cap() -> None:
    shape = AttentionShape(4, 2, 16, 1.0, window=9, soft_cap=3.0)
    check(cache_case([(1, 40), (12, 30), (30, 0)], shape, 16, torch.float32), shape, torch.float32, CONFIGS)


@pytest.mark.parametrize("window", [None, 20])
def test_splits_add_up_also_where_a_split_has_no_keys(window: int | None) -> None:
    shape = AttentionShape(4, 2, 16, 0.25, window=window)
    case = cache_case([(1, 99), (1, 0), (3, 33), (1, 15)], shape, 8, torch.float32)
    check(case, shape, torch.float32, CONFIGS, num_splits=4)


def test_rows_that_end_at_the_edges_of_blocks_and_tiles() -> None:
    shape = AttentionShape(2, 1, 16, 0.25)
    lengths = [(new, before) for new in (1, 8, 9) for before in (0, 7, 8, 16)]
    check(cache_case(lengths, shape, 8, torch.float32), shape, torch.float32, CONFIGS)


def test_more_query_heads_to_a_key_head_than_a_tile_has_lines() -> None:
    shape = AttentionShape(20, 1, 16, 0.25)
    check(cache_case([(1, 9), (3, 2)], shape, 8, torch.float32), shape, torch.float32, CONFIGS)


def test_no_tokens_no_launch() -> None:
    shape = AttentionShape(2, 1, 16, 0.25)
    case = cache_case([(0, 0)], shape, 8, torch.float32)
    output = Guarded(0, 32, dtype=torch.float32)
    paged_attention(torch.empty(0, 32), case.layer_cache, output.tensor, case.rows, shape, CONFIGS).run()
    output.check_guards()


def test_a_card_that_has_enough_to_do_does_not_split() -> None:
    assert num_splits_for(num_tiles=1, num_kv_heads=8, max_seq_len=8192, num_processors=132) == 32
    assert num_splits_for(num_tiles=1, num_kv_heads=8, max_seq_len=300, num_processors=132) == 2
    assert num_splits_for(num_tiles=256, num_kv_heads=8, max_seq_len=8192, num_processors=132) == 1
    assert num_splits_for(num_tiles=0, num_kv_heads=8, max_seq_len=0, num_processors=132) == 1


SHAPES = st.builds(
    lambda kv_heads, group, head_dim, window, soft_cap: AttentionShape(
        kv_heads * group, kv_heads, head_dim, head_dim**-0.5, window=window, soft_cap=soft_cap
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([16, 24, 64]),
    st.none() | st.integers(1, 40),
    st.none() | st.floats(0.5, 50.0),
)
LENGTHS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=5)
FEW_LENGTHS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 24)), min_size=1, max_size=3)
SIZES = st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 32, 64]))


def _check_any(
    shape: AttentionShape,
    lengths: list[tuple[int, int]],
    block_size: int,
    stored: str,
    splits: int,
    sizes: tuple[int, int],
) -> None:
    configs = one_config("paged_attention", block_m=sizes[0], block_n=sizes[1])
    dtype = torch.float16 if stored == "fp8" else DTYPES[stored]
    case = cache_case([*lengths, (1, 3)], shape, block_size, DTYPES[stored])
    check(case, shape, dtype, configs, splits)


ANY = {
    "shape": SHAPES,
    "lengths": LENGTHS,
    "block_size": st.sampled_from([1, 5, 8, 16]),
    "stored": st.sampled_from(sorted(DTYPES)),
    "splits": st.sampled_from([1, 1, 3]),
    "sizes": SIZES,
}


@settings(max_examples=7, deadline=None, database=None)
@given(**{**ANY, "lengths": FEW_LENGTHS})
def test_any_shape_equals_the_reference(
    shape: AttentionShape,
    lengths: list[tuple[int, int]],
    block_size: int,
    stored: str,
    splits: int,
    sizes: tuple[int, int],
) -> None:
    _check_any(shape, lengths, block_size, stored, splits, sizes)


@pytest.mark.long
@settings(max_examples=150, deadline=None, database=None)
@given(**ANY)
def test_many_shapes_equal_the_reference(
    shape: AttentionShape,
    lengths: list[tuple[int, int]],
    block_size: int,
    stored: str,
    splits: int,
    sizes: tuple[int, int],
) -> None:
    _check_any(shape, lengths, block_size, stored, splits, sizes)
