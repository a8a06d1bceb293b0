"""Log-probabilities that are queued on a device are those of the host, in its order."""

from typing import Any

import pytest
import torch

from vllm_obs.engine.sampling.device_scores import SortedScorer, make_scorer
from vllm_obs.engine.sampling.logprobs import gather_logprobs


@pytest.mark.parametrize("num_best", [0, 3, 50, 500])
def test_sorted_scores_are_the_hosts(num_best: int) -> None:
    torch.manual_seed(num_best)
    logits = torch.randn(4, 50).mul_(2).round_()  # many equals
    chosen = torch.tensor([0, 49, 7, 7])
    found = SortedScorer().scores(logits, chosen, num_best)
    expected = gather_logprobs(torch.log_softmax(logits, dim=-1), chosen.numpy(), num_best)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.ranks.tolist() == expected.ranks.tolist()
    assert found.logprobs.numpy() == pytest.approx(expected.logprobs, abs=1e-6)
    assert (found.token_ids.dtype, found.ranks.dtype) == (torch.int32, torch.int32)


def test_a_row_with_a_nan_or_without_a_number_has_no_finite_maximum() -> None:
    logits = torch.tensor([[1.0, torch.nan], [-torch.inf, -torch.inf], [torch.inf, 0.0], [1.0, 2.0]])
    assert torch.isfinite(SortedScorer().maxima(logits)).tolist() == [False, False, False, True]


def test_a_host_has_no_scorer_and_a_device_without_kernels_sorts() -> None:
    model: Any = object()
    assert make_scorer(model, torch.device("cpu")) is None
    assert isinstance(make_scorer(model, torch.device("cuda")), SortedScorer)
