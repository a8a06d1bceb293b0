"""Makes one vector of each prompt that asked for one, from the hidden states its chunks bring."""

from collections.abc import Iterable

import numpy as np
import torch

from vllm_obs.engine.messages import Float32Array
from vllm_obs.engine.worker.step_inputs import PoolSpan

NOBODYS_TOKEN = 0
"""What a pooled row is answered with in place of a sampled token."""
BROKEN_STATES = "the model's hidden states for this prompt are not finite"

Pooled = list[tuple[str, Float32Array]]
Failed = list[tuple[str, str, str]]


class Pooler:
    """Keeps what earlier chunks of a prompt brought; at most one (hidden,) tensor for each row of the batch.

    Sums are in float64, so that how a prompt was cut does not show in float32.
    """

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    @property
    def num_held(self) -> int:
        """How many prompts are half read."""
        return len(self._held)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is held of sequences that left; a preempted one begins anew."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def pool(self, spans: Iterable[PoolSpan], hidden: torch.Tensor) -> tuple[Pooled, Failed]:
        """The float32 vectors (hidden,) of the prompts that are over with this step, and those that have none."""
        pooled: Pooled = []
        failed: Failed = []
        for span in spans:
            total = self._total(span, hidden)
            if not span.is_last:
                self._held[span.request_id] = total
                continue
            vector = (total / span.num_prompt_tokens if span.kind == "mean" else total).float().cpu().numpy()
            if np.isfinite(vector).all():
                pooled.append((span.request_id, vector))
            else:
                failed.append((span.request_id, "invalid_logits", BROKEN_STATES))
        return pooled, failed

    def _total(self, span: PoolSpan, hidden: torch.Tensor) -> torch.Tensor:
        """The sum of the states so far, float64; of a kind that takes one position it is that state."""
        part = hidden[span.hidden_start : span.hidden_start + span.num_hidden].double().sum(0)
        held = self._held.pop(span.request_id, None)
        return part if held is None else held + part
