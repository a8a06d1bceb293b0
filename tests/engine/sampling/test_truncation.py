"""top_k, top_p and min_p leave in what their definitions say, found without sorting the vocabulary."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vllm_obs.engine.sampling.sorted_truncation import truncated_weights
from vllm_obs.engine.sampling.truncation import GROUP, Filters, best_token_ids, is_whole, kept_tokens, nucleus


def kept(row: np.ndarray, filters: Filters) -> tuple[list[int], np.ndarray]:
    best = float(row.max())
    if is_whole(filters, len(row)):
        every = np.exp((row - best) / np.float32(filters.temperature))
        ids, weights = nucleus(every, float(every.sum(dtype=np.float64)), filters.top_p)
    else:
        ids, weights = kept_tokens(row, best, filters)
    return ids.tolist(), weights


def by_definition(row: np.ndarray, filters: Filters) -> set[int]:
    """One token after the other, best first, in Python floats."""
    best = max(row.tolist())
    weights = {token: math.exp((value - best) / filters.temperature) for token, value in enumerate(row.tolist())}
    ordered = sorted(weights, key=lambda token: -row[token])
    if filters.min_p:
        ordered = [token for token in ordered if weights[token] >= filters.min_p]
    if filters.top_k:
        ordered = ordered[: filters.top_k]
    total, reached, left = sum(weights[token] for token in ordered), 0.0, []
    for token in ordered:
        left.append(token)
        reached += weights[token]
        if filters.top_p < 1.0 and reached >= filters.top_p * total:
            break
    return set(left)


def is_near_boundary(row: np.ndarray, filters: Filters, differing: set[int]) -> bool:
    """Whether float32 rounding of weights explains a difference of one token at the edge of the mass."""
    weights = np.exp((row.astype(np.float64) - row.max()) / filters.temperature)
    return weights[list(differing)].sum() <= 2e-6 * weights.sum() or len(differing) == 1


filters_strategy = st.builds(
    Filters,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 20, 300, 100_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5 * GROUP), st.integers(0, 2**31), st.sampled_from([0.01, 1.0, 6.0]), filters_strategy)
@example(40 * GROUP, 0, 0.01, Filters(1.0, 0, 0.9, 0.0))
@example(40 * GROUP, 0, 6.0, Filters(1.0, 0, 0.9, 0.0))
@example(GROUP, 0, 1.0, Filters(1.0, 0, 0.9, 0.0))
def test_kept_tokens_are_those_of_the_definition(size: int, seed: int, spread: float, filters: Filters) -> None:
    row = (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)
    ids, weights = kept(row, filters)
    expected = by_definition(row, filters)
    assert set(ids) == expected or is_near_boundary(row, filters, set(ids) ^ expected)
    assert ids == sorted(ids)
    assert weights == pytest.approx(np.exp((row[ids] - row.max()) / filters.temperature), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5 * GROUP), st.integers(0, 2**31), filters_strategy)
def test_kept_tokens_are_those_of_the_sorting_reference(size: int, seed: int, filters: Filters) -> None:
    row = (np.random.default_rng(seed).normal(size=size) * 3).astype(np.float32)
    columns = (torch.tensor([value]) for value in filters)
    reference = truncated_weights(torch.from_numpy(row)[None], *columns)[0].numpy()
    ids, _ = kept(row, filters)
    differing = set(ids) ^ set(np.flatnonzero(reference).tolist())
    assert not differing or is_near_boundary(row, filters, differing)


def test_ties_at_the_boundary_all_stay_in() -> None:
    row = np.array([0.0, 5.0, 3.0, 3.0, 3.0, -2.0], np.float32)
    assert kept(row, Filters(1.0, 2, 1.0, 0.0))[0] == [1, 2, 3, 4]
    row = np.log(np.array([0.2, 0.2, 0.2, 0.2, 0.2], np.float32))
    assert kept(row, Filters(1.0, 0, 0.5, 0.0))[0] == [0, 1, 2, 3, 4]


def test_top_k_one_is_the_best_token_at_any_temperature() -> None:
    row = np.array([7.0, 7.000001, 6.0], np.float32)
    assert kept(row, Filters(1e6, 1, 1.0, 0.0))[0] == [1]


def test_top_p_applies_to_what_top_k_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert kept(row, Filters(1.0, 2, 0.55, 0.0))[0] == [0]
    assert kept(row, Filters(1.0, 0, 0.55, 0.0))[0] == [0, 1]


def test_impossible_tokens_are_never_kept_with_weight() -> None:
    row = np.full(1000, -np.inf, np.float32)
    row[[3, 400]] = [1.0, 0.0]
    for filters in (Filters(1.0, 50, 1.0, 0.0), Filters(1.0, 0, 0.99, 0.0), Filters(1.0, 0, 1.0, 0.01)):
        ids, weights = kept(row, filters)
        assert [token for token, weight in zip(ids, weights, strict=True) if weight > 0] == [3, 400]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4 * GROUP), st.integers(1, 4 * GROUP), st.integers(0, 2**31))
def test_best_token_ids_are_a_sort_s_with_ties(size: int, k: int, seed: int) -> None:
    row = np.random.default_rng(seed).integers(0, 40, size).astype(np.float32)
    k = min(k, size)
    kth = np.sort(row)[::-1][k - 1]
    assert best_token_ids(row, k).tolist() == np.flatnonzero(row >= kth).tolist()
