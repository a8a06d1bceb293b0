"""A number picks the token whose share of the cumulative weight it falls into."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine.sampling.inverse_cdf import CHUNK, draw_tokens

ALMOST_ONE = 1.0 - 2.0**-53


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3 * CHUNK + 5), st.integers(1, 4), st.integers(0, 2**31), st.floats(0.0, ALMOST_ONE))
def test_token_is_where_the_cumulative_weight_passes_the_number(
    vocab_size: int, num_rows: int, seed: int, number: float
) -> None:
    random = np.random.default_rng(seed)
    weights = np.exp(random.normal(size=(num_rows, vocab_size)) * 5).astype(np.float32)
    weights[random.random(weights.shape) < 0.5] = 0.0
    weights[:, random.integers(vocab_size)] = 1.0
    tokens = draw_tokens(torch.from_numpy(weights), torch.full((num_rows,), number, dtype=torch.float64))
    for row, token in zip(weights.astype(np.float64), tokens.tolist(), strict=True):
        upto = np.cumsum(row) / row.sum()
        assert row[token] > 0
        assert upto[token] >= number - 1e-6
        assert upto[token] - row[token] / row.sum() <= number + 1e-6


@pytest.mark.parametrize("vocab_size", [1, 7, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_ends_of_the_range_give_the_first_and_last_possible_token(vocab_size: int) -> None:
    weights = torch.zeros(2, vocab_size)
    first, last = vocab_size // 3, vocab_size - 1 - vocab_size // 4
    weights[:, [first, last]] = 0.3
    assert draw_tokens(weights, torch.tensor([0.0, ALMOST_ONE], dtype=torch.float64)).tolist() == [first, last]


def test_tiny_weights_at_the_end_are_not_reached_by_rounding() -> None:
    weights = torch.full((1, 4 * CHUNK), 0.0)
    weights[0, :3] = torch.tensor([1e8, 1e-8, 0.0])
    weights[0, 2 * CHUNK] = 1e-12
    assert draw_tokens(weights, torch.tensor([ALMOST_ONE], dtype=torch.float64)).item() == 0


def test_a_row_is_drawn_alike_alone_and_in_a_batch() -> None:
    random = np.random.default_rng(5)
    weights = torch.from_numpy(np.exp(random.normal(size=(33, 1000)) * 3).astype(np.float32))
    numbers = torch.from_numpy(random.random(33))
    together = draw_tokens(weights, numbers).tolist()
    assert together == [draw_tokens(weights[i : i + 1], numbers[i : i + 1]).item() for i in range(33)]
