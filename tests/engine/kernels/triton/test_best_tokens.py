"""Best tokens and log-probabilities equal torch's; the lower id is the better of two equals."""

import torch
from guarded import Guarded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_cases import one_config

from vllm_obs.engine.kernels.triton.best_tokens import best_tokens, logprobs
from vllm_obs.engine.sampling.choice import best_tokens as sampler_best
from vllm_obs.engine.sampling.logprobs import gather_logprobs


def _best(logits: torch.Tensor, block_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, maxima = Guarded(len(logits), dtype=torch.int64), Guarded(len(logits), dtype=torch.float32)
    best_tokens(logits, tokens.tensor, maxima.tensor, one_config("best_tokens", block_size=block_size)).run()
    return tokens.whole(), maxima.whole()


@settings(max_examples=5, deadline=None, database=None, derandomize=True)
@example(num_rows=0, vocab_size=7, has_ties=False, block_size=32)
@example(num_rows=3, vocab_size=33, has_ties=True, block_size=32)
@given(st.integers(0, 4), st.integers(1, 300), st.booleans(), st.sampled_from([32, 256]))
def test_best_tokens_are_the_samplers(num_rows: int, vocab_size: int, has_ties: bool, block_size: int) -> None:
    logits = torch.randn(num_rows, vocab_size)
    logits = logits.round() if has_ties else logits
    tokens, maxima = _best(logits, block_size)
    expected_tokens, expected_maxima = sampler_best(logits)
    assert tokens.tolist() == expected_tokens.tolist()
    assert maxima.tolist() == expected_maxima.tolist()


def test_a_row_gone_wrong_has_an_infinite_maximum() -> None:
    logits = torch.randn(4, 100)
    logits[0, 99], logits[1], logits[2, 50] = torch.nan, -torch.inf, torch.inf
    tokens, maxima = _best(logits)
    assert maxima.isinf().tolist() == [True, True, True, False]
    assert tokens.tolist()[:3] == [99, 0, 50]


def check(logits: torch.Tensor, chosen: torch.Tensor, num_best: int, block_size: int) -> None:
    num_rows = len(logits)
    token_ids = Guarded(num_rows, num_best + 1, dtype=torch.int32)
    values, ranks = Guarded(num_rows, num_best + 1, dtype=torch.float32), Guarded(num_rows, dtype=torch.int32)
    outputs = token_ids.tensor, values.tensor, ranks.tensor
    logprobs(logits, chosen, outputs, num_best, one_config("logprobs", block_size=block_size)).run()
    expected = gather_logprobs(torch.log_softmax(logits, -1), chosen.numpy(), num_best)
    assert token_ids.whole().tolist() == expected.token_ids.tolist()
    assert ranks.whole().tolist() == expected.ranks.tolist()
    torch.testing.assert_close(values.whole(), torch.from_numpy(expected.logprobs), rtol=1e-6, atol=2e-6)


@settings(max_examples=3, deadline=None, database=None, derandomize=True)
@example(num_rows=2, vocab_size=65, num_best=5, has_ties=True, block_size=32)
@example(num_rows=2, vocab_size=8, num_best=0, has_ties=False, block_size=256)
@given(st.integers(1, 3), st.integers(8, 160), st.integers(0, 6), st.booleans(), st.sampled_from([32, 256]))
def test_logprobs_are_the_samplers(
    num_rows: int, vocab_size: int, num_best: int, has_ties: bool, block_size: int
) -> None:
    logits = torch.randn(num_rows, vocab_size) * 3
    logits = logits.round() if has_ties else logits
    check(logits, torch.randint(0, vocab_size, (num_rows,)), num_best, block_size)


def test_banned_tokens_come_last_in_the_order_of_ids() -> None:
    logits = torch.full((1, 10), -torch.inf)
    logits[0, 4], logits[0, 8] = 1.0, 3.0
    check(logits, torch.tensor([8]), 4, 4)
