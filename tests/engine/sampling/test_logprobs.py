"""Log-probabilities, ranks and alternatives equal those of a whole sort."""

import numpy as np
import pytest
import torch

from vllm_obs.engine.sampling.logprobs import concatenate, gather_logprobs, position_of


@pytest.mark.parametrize(("vocab_size", "num_best"), [(5, 0), (5, 20), (1000, 1), (1000, 20)])
def test_values_ranks_and_alternatives_equal_a_sort_s(vocab_size: int, num_best: int) -> None:
    random = np.random.default_rng(8)
    logits = random.integers(-6, 7, (6, vocab_size)).astype(np.float32)  # many ties
    logprobs = torch.log_softmax(torch.from_numpy(logits), dim=-1)
    tokens = random.integers(0, vocab_size, 6)
    found = gather_logprobs(logprobs, tokens, num_best)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    for row in range(6):
        ordered = sorted(range(vocab_size), key=lambda token, row=row: (-logits[row, token], token))[:num_best]
        assert found.token_ids[row].tolist() == [tokens[row], *ordered]
        assert found.ranks[row] == 1 + np.count_nonzero(logits[row] > logits[row, tokens[row]])
        assert found.logprobs[row].tolist() == pytest.approx(exact[row, found.token_ids[row]].tolist(), abs=1e-5)
    assert found.token_ids.dtype == found.ranks.dtype == np.int32
    assert found.logprobs.dtype == np.float32


def test_positions_are_taken_out_and_put_together_again() -> None:
    logprobs = torch.log_softmax(torch.randn(4, 50), dim=-1)
    found = gather_logprobs(logprobs, np.arange(4), 3)
    again = concatenate([position_of(found, position, 3) for position in range(4)])
    assert all(np.array_equal(*columns) for columns in zip(found, again, strict=True))
    assert position_of(found, 2, 1).token_ids.tolist() == found.token_ids[2:3, :2].tolist()
