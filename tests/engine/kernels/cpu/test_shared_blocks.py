"""Rows whose tables begin alike read the common blocks together, and get what they get alone, to the bit."""

from functools import cache
from typing import NamedTuple

import pytest
import torch
from cpu_kernels import PagedStep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape, cache_form
from vllm_obs.engine.kernels.cpu.program import Kernels

from .conftest import MACHINES
from .test_attention import rotations

HEADS = {"three to one": (6, 2), "one to one": (3, 3), "eight to one": (8, 1)}
TRUNK_BLOCKS = 3


class Row(NamedTuple):
    """A sequence that begins with so many blocks of the trunk, goes on by itself, and computes new tokens."""

    num_shared: int
    num_own: int
    num_new: int = 1


CACHES = [(name, cache_form("float16", machine)) for name, machine in sorted(MACHINES.items())]
"""A CPU that adds products has whole numbers, the others float16."""


@cache
def kernels_of(caches: tuple[str, str], heads: str) -> Kernels:
    machine, stored = caches
    return Kernels(MACHINES[machine], CacheShape(*HEADS[heads], 32, 16, stored), ())


def random_qkv(kernels: Kernels, num_tokens: int) -> torch.Tensor:
    shape = kernels.shape
    return torch.randn(num_tokens, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)


def grown(kernels: Kernels, rows: list[Row]) -> PagedStep:
    """A cache that holds all that the rows have before this step; row n is sequence n + 1."""
    step = PagedStep(kernels, 16 * (len(rows) + 1), rotations(kernels.shape.head_dim))
    step.run(random_qkv(kernels, 16 * TRUNK_BLOCKS), [(0, 0, 16 * TRUNK_BLOCKS)])
    for sequence, row in enumerate(rows, 1):
        step.share(sequence, 0, row.num_shared)
        if row.num_own:
            step.run(random_qkv(kernels, row.num_own), [(sequence, 16 * row.num_shared, row.num_own)])
    return step


def in_one_step_and_alone(
    step: PagedStep, rows: list[Row], window: int, num_threads: int = 2
) -> tuple[torch.Tensor, torch.Tensor]:
    qkv = random_qkv(step.kernels, sum(row.num_new for row in rows))
    calls = [(number, 16 * row.num_shared + row.num_own, row.num_new) for number, row in enumerate(rows, 1)]
    num_decodes = sum(row.num_new == 1 for row in rows)
    together = step.run(qkv.clone(), calls, window, num_threads, num_decodes)
    parts = qkv.split([row.num_new for row in rows])
    alone = [step.run(part.clone(), [call], window) for part, call in zip(parts, calls, strict=True)]
    return together, torch.cat(alone)


decodes = st.builds(Row, st.integers(0, TRUNK_BLOCKS), st.integers(0, 20), st.just(1))
chunks = st.builds(Row, st.integers(0, TRUNK_BLOCKS), st.integers(0, 12), st.integers(2, 9))


@given(
    caches=st.sampled_from(CACHES),
    heads=st.sampled_from(sorted(HEADS)),
    decoding=st.lists(decodes, min_size=1, max_size=9),
    beside=st.lists(chunks, max_size=2),
    window=st.sampled_from([0, 0, 1, 5, 20, 40]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_shares_a_rows_blocks_changes_no_bit(
    caches: tuple[str, str], heads: str, decoding: list[Row], beside: list[Row], window: int
) -> None:
    rows = [*decoding, *beside]
    together, alone = in_one_step_and_alone(grown(kernels_of(caches, heads), rows), rows, window)
    assert together.isfinite().all()
    assert torch.equal(together, alone)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("caches", CACHES)
def test_the_whole_trunk_is_read_by_all(num_threads: int, caches: tuple[str, str]) -> None:
    kernels = kernels_of(caches, "three to one")
    rows = [Row(TRUNK_BLOCKS, number) for number in range(7)]
    together, alone = in_one_step_and_alone(grown(kernels, rows), rows, 0, num_threads)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("caches", CACHES)
def test_a_broken_row_breaks_none_with_the_same_beginning(caches: tuple[str, str]) -> None:
    kernels = kernels_of(caches, "three to one")
    rows = [Row(TRUNK_BLOCKS, 4)] * 4
    step = grown(kernels, rows)
    step.run(random_qkv(kernels, 1) * torch.nan, [(2, 16 * TRUNK_BLOCKS + 3, 1)])
    together, alone = in_one_step_and_alone(step, rows, 0)
    assert together[1].isnan().all()
    assert together[[0, 2, 3]].isfinite().all()
    assert torch.equal(together[[0, 2, 3]], alone[[0, 2, 3]])
