"""TritonScorer: log-probabilities by kernels, and by a sort where a kernel would read a row too often."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.kernels.triton.best_tokens import best_tokens, logprobs
from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.sampling.device_scores import Scores, SortedScorer

ALTERNATIVES = (0, 2, 8, 32)
"""Numbers of alternatives that there is a kernel for: the next larger one is taken, and the best of it kept.

The kernel reads a row once for each, so that more of them are left to a sort.
"""


@dataclass(frozen=True)
class TritonScorer:
    """With the configurations of a card."""

    configs: Configs

    def scores(self, logits: torch.Tensor, chosen: torch.Tensor, num_best: int) -> Scores:
        """See device_scores.Scorer."""
        if num_best > ALTERNATIVES[-1]:
            return SortedScorer().scores(logits, chosen, num_best)
        num_best = min(next(number for number in ALTERNATIVES if number >= num_best), logits.shape[1])
        shape = (len(logits), 1 + num_best)
        found = Scores(
            torch.empty(shape, dtype=torch.int32, device=logits.device),
            torch.empty(shape, dtype=torch.float32, device=logits.device),
            torch.empty(len(logits), dtype=torch.int32, device=logits.device),
        )
        logprobs(logits, chosen, found, num_best, self.configs).run()
        return found

    def maxima(self, logits: torch.Tensor) -> torch.Tensor:
        """+inf where there is a NaN."""
        maxima = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        best_tokens(logits, tokens, maxima, self.configs).run()
        return maxima
