"""Norms, rotations, the gate and the qkv split equal float64 for any shape, and write all of their outputs."""

import pytest
import torch
from guarded import Guarded
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, TOLERANCES, one_config

from vllm_obs.engine.kernels.triton.layer_reference import (
    reference_qkv_split,
    reference_rms_norm,
    reference_rotary,
    reference_silu_mul,
)
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape
from vllm_obs.engine.kernels.triton.qkv import HeadNorms, Places, qkv_split
from vllm_obs.engine.kernels.triton.rms_norm import rms_norm
from vllm_obs.engine.kernels.triton.rotary import rotary
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul

FLOATS = ["float32", "float16", "bfloat16"]


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the tolerance of the found numbers' type."""
    difference = (found.double() - expected).abs() / (1.0 + expected.abs())
    assert difference.numel() == 0 or difference.max() <= TOLERANCES[found.dtype]


def _rotations(head_dim: int, num_positions: int = 50) -> torch.Tensor:
    angles = torch.randn(num_positions, head_dim // 2)
    return torch.view_as_real(torch.polar(torch.full_like(angles, 1.25), angles)).contiguous()


def check_norm(num_rows: int, size: int, dtype: torch.dtype, *, has_added: bool) -> None:
    stream = torch.randn(num_rows, size + 1)[:, :size]
    added = torch.randn(num_rows, size).to(dtype) if has_added else None
    weight, output = torch.randn(size), Guarded(num_rows, size, dtype=dtype)
    expected_stream, expected = reference_rms_norm(stream, added, weight, 1e-5)
    rms_norm(stream, added, weight, 1e-5, output.tensor, one_config("rms_norm")).run()
    assert_near(output.whole(), expected)
    assert_near(stream, expected_stream)


@pytest.mark.parametrize("has_added", [False, True])
@pytest.mark.parametrize("name", FLOATS)
def test_norm(name: str, has_added: bool) -> None:
    check_norm(5, 96, DTYPES[name], has_added=has_added)


@settings(max_examples=8, deadline=None, database=None)
@given(st.integers(0, 4), st.integers(1, 200), st.sampled_from(FLOATS), st.booleans())
def test_norm_of_any_shape(num_rows: int, size: int, name: str, has_added: bool) -> None:
    check_norm(num_rows, size, DTYPES[name], has_added=has_added)


def test_a_row_of_zeros_is_normed_to_zeros_and_a_nan_stays_in_its_row() -> None:
    stream, output = torch.randn(3, 64), Guarded(3, 64, dtype=torch.float32)
    stream[0], stream[1, 5] = 0.0, torch.nan
    rms_norm(stream, None, torch.ones(64), 1e-5, output.tensor, one_config("rms_norm")).run()
    output.check_guards()
    assert (output.tensor[0] == 0).all()
    assert output.tensor[1].isnan().all()
    assert output.tensor[2].isfinite().all()


@settings(max_examples=8, deadline=None, database=None)
@given(
    st.integers(0, 4),
    st.integers(1, 7),
    st.sampled_from([2, 24, 64]),
    st.sampled_from(FLOATS),
    st.sampled_from([1, 4, 16]),
)
def test_rotary_turns_the_first_heads_only(
    num_tokens: int, num_heads: int, head_dim: int, name: str, heads_block: int
) -> None:
    heads = Guarded(num_tokens, num_heads + 2, head_dim, dtype=DTYPES[name])
    heads.tensor.copy_(torch.randn(heads.tensor.shape))
    before, rotations = heads.tensor.clone(), _rotations(head_dim)
    positions = torch.randint(0, 50, (num_tokens,))
    rotary(heads.tensor, rotations, positions, num_heads, one_config("rotary", heads_block=heads_block)).run()
    assert_near(heads.whole()[:, :num_heads], reference_rotary(before[:, :num_heads], rotations, positions))
    assert torch.equal(heads.tensor[:, num_heads:], before[:, num_heads:])


@settings(max_examples=8, deadline=None, database=None)
@given(st.integers(0, 4), st.integers(1, 300), st.sampled_from(FLOATS), st.sampled_from([64, 256]))
def test_gate_of_any_shape(num_rows: int, size: int, name: str, block_size: int) -> None:
    gate_up = (4 * torch.randn(num_rows, 2 * size)).to(DTYPES[name])
    output = Guarded(num_rows, size, dtype=DTYPES[name])
    silu_mul(gate_up, output.tensor, one_config("silu_mul", block_size=block_size)).run()
    assert_near(output.whole(), reference_silu_mul(gate_up))


def check_split(
    shape: AttentionShape, slots: list[int], source: torch.dtype, stored: torch.dtype, *, has_norm: bool
) -> None:
    head_dim, block_size = shape.head_dim, 4
    qkv = torch.randn(len(slots), (shape.num_heads + 2 * shape.num_kv_heads) * head_dim).to(source)
    norms = HeadNorms(torch.randn(head_dim), torch.randn(head_dim), 1e-6) if has_norm else None
    places = Places(
        torch.randint(0, 50, (len(slots),)), torch.tensor(slots, dtype=torch.int64), _rotations(head_dim)
    )
    cache = Guarded(5, 2, shape.num_kv_heads, block_size, head_dim, dtype=stored)
    expected_cache = cache.tensor.clone()
    queries = Guarded(len(slots), shape.num_heads * head_dim, dtype=source)
    qkv_split(qkv, norms, places, queries.tensor, cache.tensor, shape, one_config("qkv")).run()
    assert_near(queries.whole(), reference_qkv_split(qkv, norms, places, expected_cache, shape))
    cache.check_guards()
    if stored == torch.uint8:  # a value may fall to either side of the middle between two codes
        assert (cache.tensor.int() - expected_cache.int()).abs().max() <= 1
    else:
        assert torch.equal(cache.poisoned(cache.tensor), cache.poisoned(expected_cache))
        assert_near(cache.tensor.nan_to_num(), expected_cache.nan_to_num().double())


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("stored", DTYPES)
def test_qkv_is_split_rotated_and_cached(stored: str, has_norm: bool) -> None:
    shape = AttentionShape(6, 2, 24, 1.0, key_scale=0.125, value_scale=0.5)
    source = torch.float16 if stored == "fp8" else DTYPES[stored]
    check_split(shape, [7, 0, -1, 19, 4], source, DTYPES[stored], has_norm=has_norm)


@settings(max_examples=6, deadline=None, database=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([2, 16, 24]), st.integers(0, 6), st.booleans())
def test_qkv_split_of_any_shape(kv_heads: int, group: int, head_dim: int, num_tokens: int, has_norm: bool) -> None:
    shape = AttentionShape(kv_heads * group, kv_heads, head_dim, 1.0)
    check_split(shape, torch.randperm(20)[:num_tokens].tolist(), torch.float32, torch.float32, has_norm=has_norm)
