"""Masks, penalties and biases change the tokens they name in the rows they name, and no other logit."""

import numpy as np
import torch
from guarded import Guarded
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import one_config

from vllm_obs.engine.kernels.triton.logit_edits import PenaltyColumns, RowTokens, logit_bias, penalties
from vllm_obs.engine.kernels.triton.sampling_reference import (
    reference_bias,
    reference_bitmask,
    reference_penalties,
)
from vllm_obs.engine.kernels.triton.token_bitmask import token_bitmask
from vllm_obs.engine.sampling.constraints import apply_bitmask
from vllm_obs.engine.sampling.penalties import Penalties, SeenTokens, apply_penalties


def _logits(num_rows: int, vocab_size: int) -> Guarded:
    logits = Guarded(num_rows, vocab_size, dtype=torch.float32)
    logits.tensor.copy_(torch.randn(num_rows, vocab_size))
    return logits


@settings(max_examples=10, deadline=None, database=None)
@given(st.integers(1, 4), st.integers(1, 300), st.integers(-1, 1), st.sampled_from([1, 2, 8]))
def test_tokens_whose_bit_is_0_are_banned(num_rows: int, vocab_size: int, missing: int, block_words: int) -> None:
    num_words = max(-(-vocab_size // 32) + missing, 1)
    bitmask = torch.randint(-(2**31), 2**31, (num_rows, num_words), dtype=torch.int64).int()
    rows = torch.randperm(num_rows + 2)[:num_rows].int()
    logits = _logits(num_rows + 2, vocab_size)
    expected, served = logits.tensor.clone(), logits.tensor.clone()
    token_bitmask(logits.tensor, rows, bitmask, one_config("token_bitmask", block_words=block_words)).run()
    reference_bitmask(expected, rows, bitmask)
    apply_bitmask(served, rows.tolist(), bitmask.numpy())
    assert torch.equal(logits.whole(), expected)
    assert torch.equal(served, expected)


def _row_tokens(rows: list[int], tokens: list[list[int]]) -> RowTokens:
    starts = torch.tensor([0, *(len(row) for row in tokens)]).cumsum(0).int()
    ids = torch.tensor([token for row in tokens for token in row], dtype=torch.int32)
    longest = max((len(row) for row in tokens), default=0)
    return RowTokens(torch.tensor(rows, dtype=torch.int32), starts, ids, longest)


@settings(max_examples=8, deadline=None, database=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=40), min_size=1, max_size=4), st.sampled_from([8, 64]))
def test_penalties_are_those_of_the_sampler(outputs: list[list[int]], block_size: int) -> None:
    prompt = np.array([3, 50, 51], np.int32)
    rows = torch.randperm(len(outputs) + 1)[: len(outputs)].tolist()
    seen = [SeenTokens(prompt, np.array(row, np.int32)) for row in outputs]
    factors = [torch.rand(len(outputs)) + 0.5, torch.randn(len(outputs)), torch.randn(len(outputs))]
    logits = _logits(len(outputs) + 1, 100)
    expected, by_reference = logits.tensor.clone(), logits.tensor.clone()
    of_rows = [[column[row].item() for column in factors] for row in range(len(outputs))]
    apply_penalties(expected, [Penalties(row, *of_rows[i], seen[i]) for i, row in enumerate(rows)])
    tokens = _row_tokens(rows, [one.token_ids.tolist() for one in seen])
    columns = PenaltyColumns(torch.from_numpy(np.concatenate([one.counts for one in seen])), *factors)
    penalties(logits.tensor, tokens, columns, one_config("penalties", block_size=block_size)).run()
    reference_penalties(by_reference, tokens, columns)
    torch.testing.assert_close(logits.whole(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_reference, expected, rtol=1e-6, atol=1e-6)
    untouched = sorted(set(range(len(outputs) + 1)) - set(rows))
    assert torch.equal(logits.tensor[untouched], expected[untouched])


@settings(max_examples=8, deadline=None, database=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=20), min_size=1, max_size=4), st.sampled_from([8, 64]))
def test_biases_of_one_token_add_up(tokens: list[list[int]], block_size: int) -> None:
    biased = _row_tokens(list(range(len(tokens))), tokens)
    biases = torch.randn(len(biased.token_ids))
    biases[::5] = -torch.inf
    logits = _logits(len(tokens), 100)
    expected = logits.tensor.clone()
    logit_bias(logits.tensor, biased, biases, one_config("logit_bias", block_size=block_size)).run()
    reference_bias(expected, biased, biases)
    torch.testing.assert_close(logits.whole(), expected, rtol=1e-5, atol=1e-5)
