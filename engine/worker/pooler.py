"""Makes one vector of each prompt that asked for one, from the hidden states its chunks bring."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from vllm_obs.engine.messages import Float32Array
from vllm_obs.engine.worker.device_port import DevicePort, Results
from vllm_obs.engine.worker.step_inputs import PoolSpan

NOBODYS_TOKEN = 0
"""What a pooled row is answered with in place of a sampled token."""
BROKEN_STATES = "the model's hidden states for this prompt are not finite"

Pooled = list[tuple[str, Float32Array]]
Failed = list[tuple[str, str, str]]


@dataclass(frozen=True)
class LaunchedVectors:
    """Vectors that are being made, of these prompts in order."""

    request_ids: list[str]
    fetch: Results

    def result(self) -> tuple[Pooled, Failed]:
        """The float32 vectors (hidden,), and the prompts that have none. Waits for the device."""
        vectors = [(name, np.array(found)) for name, found in zip(self.request_ids, self.fetch(), strict=True)]
        is_good = [bool(np.isfinite(vector).all()) for _, vector in vectors]
        pooled = [pair for pair, good in zip(vectors, is_good, strict=True) if good]
        broken = [name for (name, _), good in zip(vectors, is_good, strict=True) if not good]
        return pooled, [(name, "invalid_logits", BROKEN_STATES) for name in broken]


NO_VECTORS = LaunchedVectors([], list)


class Pooler:
    """Keeps what earlier chunks of a prompt brought; at most one (hidden,) tensor for each row of the batch.

    Sums are in float64, so that how a prompt was cut does not show in float32.
    """

    def __init__(self, port: DevicePort) -> None:
        self._port = port
        self._held: dict[str, torch.Tensor] = {}

    @property
    def num_held(self) -> int:
        """How many prompts are half read."""
        return len(self._held)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is held of sequences that left; a preempted one begins anew."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def launch(self, spans: Iterable[PoolSpan], hidden: torch.Tensor) -> LaunchedVectors:
        """Begin the vectors of the prompts that are over with this step."""
        vectors: dict[str, torch.Tensor] = {}
        for span in spans:
            total = self._total(span, hidden)
            if not span.is_last:
                self._held[span.request_id] = total
                continue
            vectors[span.request_id] = (total / span.num_prompt_tokens if span.kind == "mean" else total).float()
        if not vectors:
            return NO_VECTORS
        return LaunchedVectors(list(vectors), self._port.download(list(vectors.values())))

    def _total(self, span: PoolSpan, hidden: torch.Tensor) -> torch.Tensor:
        """The sum of the states so far, float64; of a kind that takes one position it is that state."""
        part = hidden[span.hidden_start : span.hidden_start + span.num_hidden].double().sum(0)
        held = self._held.pop(span.request_id, None)
        return part if held is None else held + part
