"""Log-probabilities that are queued on a device, for whoever takes them when they are there; see `logprobs`."""

from typing import Any, NamedTuple, Protocol

import torch


class Scores(NamedTuple):
    """As `messages.Logprobs` of P positions, on the device, with as many alternatives as were asked for or more.

    token_ids: int32 (P, 1 + alternatives), the chosen token first. logprobs: float32, of that shape. ranks: int32
    (P,). There are no more alternatives than tokens.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


class Scorer(Protocol):
    """Queues what scores need. Nothing waits."""

    def scores(self, logits: torch.Tensor, chosen: torch.Tensor, num_best: int) -> Scores:
        """Of float32 logits (P, vocab), for the tokens chosen, int64 (P,), and the num_best best."""

    def maxima(self, logits: torch.Tensor) -> torch.Tensor:
        """float32 (P,): the best logit of each row, not finite where anything of the row is wrong."""


class SortedScorer:
    """By torch, for any number of alternatives."""

    def scores(self, logits: torch.Tensor, chosen: torch.Tensor, num_best: int) -> Scores:
        """Equals keep the order of their ids: the sort is a stable one."""
        logprobs = torch.log_softmax(logits, dim=-1)
        own = logprobs.gather(1, chosen[:, None])
        ranks = (logprobs > own).sum(-1) + 1
        best = logprobs.sort(dim=-1, descending=True, stable=True).indices[:, :num_best]
        token_ids = torch.cat([chosen[:, None], best], dim=1)
        return Scores(token_ids.int(), logprobs.gather(1, token_ids), ranks.int())

    def maxima(self, logits: torch.Tensor) -> torch.Tensor:
        """NaN where there is one."""
        return logits.amax(-1)


def make_scorer(model: Any, device: torch.device) -> Scorer | None:
    """The scorer that goes with a model's backend; None where the host is the device, and `logprobs` is faster."""
    card = getattr(model, "card", None)
    if card is not None:
        # Imported here: Triton takes a while, and most CPUs do without it.
        from vllm_obs.engine.sampling.triton_scores import TritonScorer

        return TritonScorer(card.configs)
    return None if device.type == "cpu" else SortedScorer()
