"""Keys and values as whole numbers: nothing overflows, and errors are of the size that is promised."""

import math

import pytest
import torch
from cpu_kernels import PagedStep, reference_attention

from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape, cache_form
from vllm_obs.engine.kernels.cpu.head_codes import HIGHEST_SHARE, HIGHEST_VALUE, MOST_KEYS
from vllm_obs.engine.kernels.cpu.program import Kernels

from .conftest import MACHINES
from .test_attention import rotations

pytestmark = pytest.mark.skipif("vnni" not in MACHINES, reason="only a CPU with VNNI has such a cache")

SHAPES = {"small": (6, 2, 32, 16), "long heads": (2, 1, 128, 16), "long blocks": (3, 1, 64, 32)}
NUM_TOKENS = 66


@pytest.fixture(params=sorted(SHAPES))
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(MACHINES["vnni"], CacheShape(*SHAPES[request.param], "int16"), ())


def attended(kernels: Kernels, qkv: torch.Tensor, chunks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels and what float64 make of a sequence; chunks are the steps' tokens."""
    shape, begin, parts = kernels.shape, 0, []
    turns = rotations(shape.head_dim)
    step = PagedStep(kernels, 8, turns)
    for size in chunks:
        parts.append(step.run(qkv[begin : begin + size].clone(), [(0, begin, size)]))
        begin += size
    want = reference_attention(qkv, turns[: len(qkv)], shape.num_heads, shape.num_kv_heads, "int16", 0)
    return torch.cat(parts).double(), want


def heads(kernels: Kernels, make: object = torch.randn) -> torch.Tensor:
    shape = kernels.shape
    return make(NUM_TOKENS, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)  # type: ignore[operator]


def test_ordinary_numbers_are_off_by_less_than_float16_would_be(kernels: Kernels) -> None:
    qkv = heads(kernels)
    found, want = attended(kernels, qkv, [NUM_TOKENS])
    shape = kernels.shape
    rounded = reference_attention(
        qkv, rotations(shape.head_dim)[:NUM_TOKENS], shape.num_heads, shape.num_kv_heads, "float16", 0
    )
    assert (found - want).square().mean() < (rounded - want).square().mean()


@pytest.mark.parametrize("size", [1e-6, 1.0, 30.0])
def test_the_largest_sums_do_not_overflow(kernels: Kernels, size: float) -> None:
    # All codes are as large as they get, and at one position a query and a key are the same.
    shape = kernels.shape
    qkv = size * heads(kernels, torch.ones)
    qkv[:, -shape.num_kv_heads :] *= -1
    found, want = attended(kernels, qkv, [NUM_TOKENS])
    assert torch.allclose(found, want, rtol=2e-4)


def test_equal_keys_share_equally(kernels: Kernels) -> None:
    # Queries of zeros: every share is the same, so that a portion's codes are all the highest.
    shape = kernels.shape
    qkv = heads(kernels, torch.ones)
    qkv[:, : shape.num_heads] = 0
    found, want = attended(kernels, qkv, [NUM_TOKENS])
    assert torch.allclose(found, want, rtol=2e-4)
    assert MOST_KEYS * HIGHEST_VALUE * HIGHEST_SHARE < 2**31


def test_one_number_far_above_the_others(kernels: Kernels) -> None:
    qkv = heads(kernels)
    qkv[:, :, 3] *= 50
    found, want = attended(kernels, qkv, [NUM_TOKENS])
    assert (found - want).abs().max() < 0.02 * math.sqrt(50)


def test_zeros_are_zeros(kernels: Kernels) -> None:
    found, _ = attended(kernels, heads(kernels, torch.zeros), [NUM_TOKENS])
    assert torch.equal(found, torch.zeros_like(found))


def test_a_token_written_later_leaves_the_other_of_its_pair_as_it_is(kernels: Kernels) -> None:
    qkv = heads(kernels)
    one_by_one, _ = attended(kernels, qkv, [1] * NUM_TOKENS)
    at_once, _ = attended(kernels, qkv, [NUM_TOKENS])
    assert torch.equal(one_by_one, at_once)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_what_is_no_number_is_found(kernels: Kernels, bad: float, part: str) -> None:
    shape = kernels.shape
    qkv = heads(kernels)
    first = {"query": 0, "key": shape.num_heads, "value": shape.num_heads + shape.num_kv_heads}[part]
    qkv[40, first, 5] = bad
    found, _ = attended(kernels, qkv, [40, 1, NUM_TOKENS - 41])
    assert found[:40].isfinite().all()
    assert not found[40, 0].isfinite().any()
    if part != "query":
        assert not found[41:, 0].isfinite().any()


@pytest.mark.parametrize(("stored", "form"), [("float32", "float32"), ("float16", "int16"), ("bfloat16", "int16")])
def test_only_float32_stays_as_it_is(stored: str, form: str) -> None:
    assert cache_form(stored, MACHINES["vnni"]) == form


def test_without_vnni_numbers_stay_floats() -> None:
    assert cache_form("float16", MACHINES["avx512"]) == "float16"


@pytest.mark.parametrize(("broken", "chunks"), [(5, [20]), (17, [2, 18]), (17, [20]), (40, [3, 60])])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_does_not_reach_those_before_it(
    kernels: Kernels, broken: int, chunks: list[int], number: float
) -> None:
    qkv = heads(kernels)[: sum(chunks)]
    whole, _ = attended(kernels, qkv, chunks)
    qkv[broken, -kernels.shape.num_kv_heads :] = number
    found, _ = attended(kernels, qkv, chunks)
    assert torch.equal(found[:broken], whole[:broken])
    assert not found[broken:].isfinite().any()
