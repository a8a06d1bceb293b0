"""PromptScores: log-probabilities of a prompt's own tokens, a bounded slice of their logits at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.model.interface import DecoderModel, Progress
from vllm_obs.engine.sampling.choice import best_tokens
from vllm_obs.engine.sampling.logprobs import concatenate, gather_logprobs
from vllm_obs.engine.worker.input_batch import Int64Array
from vllm_obs.engine.worker.step_inputs import PromptSpan

PROMPT_LOGITS_BYTES = 32 * 2**20
"""How much of a prompt's logits exists at a time."""
BROKEN_PROMPT = "the model's logits for a token of the prompt are not finite"


@dataclass(frozen=True)
class PromptScores:
    """Asks the model for them. On a GPU this waits for each slice: who wants a prompt's scores waits anyway."""

    model: DecoderModel
    vocab_size: int
    on_layer: Progress

    def of(self, span: PromptSpan, hidden: torch.Tensor) -> Logprobs | None:
        """Log-probabilities of a span; None if any logits are not finite."""
        parts: list[Logprobs] = []
        is_finite = True
        for tokens, logits in self._logits(span, hidden):  # all of them: other ranks make parts of each
            if is_finite := is_finite and bool(np.isfinite(best_tokens(logits)[1]).all()):
                parts.append(gather_logprobs(torch.log_softmax(logits, dim=-1), tokens, span.num_best))
        return concatenate(parts) if is_finite else None

    def lend(self, span: PromptSpan, hidden: torch.Tensor) -> None:
        """Make this shard's part of the logits that the output rank asks for."""
        for _ in self._logits(span, hidden):
            pass

    def _logits(self, span: PromptSpan, hidden: torch.Tensor) -> Iterator[tuple[Int64Array, torch.Tensor]]:
        """The tokens that come next and the logits that they had, a slice at a time."""
        num_positions = max(1, PROMPT_LOGITS_BYTES // (4 * self.vocab_size))
        for start in range(0, len(span.next_token_ids), num_positions):
            tokens = span.next_token_ids[start : start + num_positions].astype(np.int64)
            self.on_layer()  # a long prompt's logits take long: this is progress too
            first = span.hidden_start + start
            yield tokens, self.model.compute_logits(hidden[first : first + len(tokens)])
