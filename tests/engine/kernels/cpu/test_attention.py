"""Rotation, cache write and attention together against float64, however a sequence is cut into steps."""

import pytest
import torch
from cpu_kernels import PagedStep, reference_attention
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_obs.engine.kernels.cpu.program import Kernels

from .conftest import MACHINES, cache_forms, kernels_for

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-4, "float16": 1e-4, "int16": 1e-4}
LONGEST = 70
CACHES = [(machine, stored) for machine in sorted(MACHINES) for stored in cache_forms(MACHINES[machine])]


@pytest.fixture(params=CACHES, ids="-".join)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    machine, stored = request.param
    return kernels_for(MACHINES[machine], stored)


def rotations(head_dim: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(LONGEST), 0.5 ** torch.arange(head_dim // 2))
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def random_qkv(kernels: Kernels, num_tokens: int) -> torch.Tensor:
    shape = kernels.shape
    return torch.randn(num_tokens, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)


def expected(kernels: Kernels, qkv: torch.Tensor, window: int) -> torch.Tensor:
    shape = kernels.shape
    turns = rotations(shape.head_dim)[: len(qkv)]
    return reference_attention(qkv, turns, shape.num_heads, shape.num_kv_heads, shape.stored, window)


def in_steps(kernels: Kernels, qkv: torch.Tensor, chunks: list[int], window: int = 0) -> torch.Tensor:
    step, done, parts = PagedStep(kernels, 16, rotations(kernels.shape.head_dim)), 0, []
    for size in chunks:
        parts.append(step.run(qkv[done : done + size].clone(), [(0, done, size)], window))
        done += size
    return torch.cat(parts)


@pytest.mark.parametrize("window", [0, 1, 7, 16, 33])
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 33, LONGEST])
def test_a_prompt_attends_to_itself(kernels: Kernels, num_tokens: int, window: int) -> None:
    qkv = random_qkv(kernels, num_tokens)
    found = in_steps(kernels, qkv, [num_tokens], window)
    want = expected(kernels, qkv, window)
    assert torch.allclose(found.double(), want, atol=10 * TOLERANCE[kernels.shape.stored])


@given(
    cache=st.sampled_from(CACHES),
    chunks=st.lists(st.integers(1, 24), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) <= LONGEST),
    window=st.sampled_from([0, 0, 5, 20]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_how_a_sequence_is_cut_changes_no_bit(cache: tuple[str, str], chunks: list[int], window: int) -> None:
    kernels = kernels_for(MACHINES[cache[0]], cache[1])
    qkv = random_qkv(kernels, sum(chunks))
    assert torch.equal(in_steps(kernels, qkv, chunks, window), in_steps(kernels, qkv, [sum(chunks)], window))


def test_rows_of_a_batch_get_what_they_get_alone(kernels: Kernels) -> None:
    lengths = [3, 40, 17, 1]
    sequences = [random_qkv(kernels, length + 1) for length in lengths]
    step = PagedStep(kernels, 32, rotations(kernels.shape.head_dim))
    rows = [(number, 0, length) for number, length in enumerate(lengths)]
    prompts = step.run(torch.cat([qkv[:-1] for qkv in sequences]), rows)
    last = step.run(
        torch.cat([qkv[-1:] for qkv in sequences]), [(n, length, 1) for n, length in enumerate(lengths)], 0, 1
    )
    alone = [in_steps(kernels, qkv, [len(qkv)]) for qkv in sequences]
    assert torch.equal(prompts, torch.cat([whole[:-1] for whole in alone]))
    assert torch.equal(last, torch.cat([whole[-1:] for whole in alone]))


def test_what_a_block_held_before_does_not_matter(kernels: Kernels) -> None:
    # PagedStep's cache is full of NaN where nothing was written.
    found = in_steps(kernels, random_qkv(kernels, 18), [17, 1])
    assert found.isfinite().all()


def test_a_broken_token_breaks_its_own_sequence_only(kernels: Kernels) -> None:
    healthy, broken = random_qkv(kernels, 20), random_qkv(kernels, 20)
    broken[4] = torch.nan
    step = PagedStep(kernels, 8, rotations(kernels.shape.head_dim))
    found = step.run(torch.cat((healthy, broken)), [(0, 0, 20), (1, 0, 20)])
    assert torch.equal(found[:20], in_steps(kernels, healthy, [20]))
    assert found[20:24].isfinite().all()
    assert found[24:].isnan().all()
