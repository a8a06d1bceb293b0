"""PromptScores: log-probabilities of a prompt's own tokens, a bounded slice of their logits at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.model.interface import DecoderModel, Progress
from vllm_obs.engine.sampling.choice import best_tokens
from vllm_obs.engine.sampling.device_scores import Scorer, make_scorer
from vllm_obs.engine.sampling.logprobs import concatenate, gather_logprobs
from vllm_obs.engine.worker.device_port import DevicePort
from vllm_obs.engine.worker.input_batch import Int64Array
from vllm_obs.engine.worker.step_inputs import PromptSpan

PROMPT_LOGITS_BYTES = 32 * 2**20
"""How much of a prompt's logits exists at a time."""
ALIGNED_POSITIONS = 16
"""Slices begin at multiples of so many, where they have that many: for another address Triton compiles anew."""
BROKEN_PROMPT = "the model's logits for a token of the prompt are not finite"

LaunchedScores = Callable[[], Logprobs | None]
"""Waits for a span's log-probabilities; None if any logits of it are not finite."""


@dataclass(frozen=True)
class PromptScores:
    """Asks the model for them. Where there is a device, all is queued, and what comes of it is read later."""

    model: DecoderModel
    vocab_size: int
    on_layer: Progress
    port: DevicePort
    scorer: Scorer | None

    @classmethod
    def of(cls, model: DecoderModel, vocab_size: int, on_layer: Progress, port: DevicePort) -> "PromptScores":
        """Those of a model on the port's device."""
        return cls(model, vocab_size, on_layer, port, make_scorer(model, port.device))

    def launch(self, span: PromptSpan, hidden: torch.Tensor) -> LaunchedScores:
        """Begin the log-probabilities of a span."""
        if self.scorer is not None:
            return self._queued(self.scorer, span, hidden)
        found = self._known(span, hidden)
        return lambda: found

    def lend(self, span: PromptSpan, hidden: torch.Tensor) -> None:
        """Make this shard's part of the logits that the output rank asks for."""
        for _ in self._logits(span, hidden):
            pass

    def _known(self, span: PromptSpan, hidden: torch.Tensor) -> Logprobs | None:
        parts: list[Logprobs] = []
        is_finite = True
        for places, logits in self._logits(span, hidden):  # all of them: other ranks make parts of each
            if is_finite := is_finite and bool(np.isfinite(best_tokens(logits)[1]).all()):
                tokens = _tokens(span)[places]
                parts.append(gather_logprobs(torch.log_softmax(logits, dim=-1), tokens, span.num_best))
        return concatenate(parts) if is_finite else None

    def _queued(self, scorer: Scorer, span: PromptSpan, hidden: torch.Tensor) -> LaunchedScores:
        (tokens,) = self.port.upload([_tokens(span)])
        parts = [
            (*scorer.scores(logits, tokens[places], span.num_best), scorer.maxima(logits))
            for places, logits in self._logits(span, hidden)
        ]
        fetch = self.port.download([torch.cat(column) for column in zip(*parts, strict=True)])

        def result() -> Logprobs | None:
            token_ids, logprobs, ranks, maxima = fetch()
            if not np.isfinite(maxima).all():
                return None
            kept = slice(1 + span.num_best)
            return Logprobs(np.array(token_ids[:, kept]), np.array(logprobs[:, kept]), np.array(ranks))

        return result

    def _logits(self, span: PromptSpan, hidden: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Places in the span, and the logits that the tokens there had, a slice at a time."""
        num_each = max(1, PROMPT_LOGITS_BYTES // (4 * self.vocab_size))
        num_each -= num_each % ALIGNED_POSITIONS if num_each > ALIGNED_POSITIONS else 0
        for start in range(0, len(span.next_token_ids), num_each):
            places = slice(start, min(start + num_each, len(span.next_token_ids)))
            self.on_layer()  # a long prompt's logits take long: this is progress too
            yield places, self.model.compute_logits(hidden[span.hidden_start :][places])


def _tokens(span: PromptSpan) -> Int64Array:
    """int64, what each position predicts."""
    return span.next_token_ids.astype(np.int64)
