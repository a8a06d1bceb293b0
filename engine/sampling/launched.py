"""Sampling in two parts: it is launched, and its result is taken when it is there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import SamplingBatch
from vllm_obs.engine.sampling.each_row import sample_rows
from vllm_obs.engine.sampling.sampler import SampledTokens

if TYPE_CHECKING:
    from vllm_obs.engine.worker.device_port import DevicePort

ComputeLogits = Callable[[], torch.Tensor]


class Launched(Protocol):
    """Rows that are being sampled."""

    @property
    def tokens(self) -> torch.Tensor | None:
        """int64 (R,) on the device, in the rows' order, -1 for one that failed; None where the host has them."""

    def result(self) -> SampledTokens:
        """Waits until it is there."""


class Sampler(Protocol):
    """Samples the rows of a step."""

    def launch(self, compute_logits: ComputeLogits, batch: SamplingBatch, masks: GrammarMasks | None) -> Launched:
        """Begin. Logits are float32 (R, vocab) and may be overwritten; they are computed anew after an error."""


class Known(NamedTuple):
    """The result of a sampler that waits for its device by itself."""

    sampled: SampledTokens
    tokens: torch.Tensor | None = None

    def result(self) -> SampledTokens:
        """It is here."""
        return self.sampled


class TorchSampler:
    """The sampler of torch and numpy, for any device."""

    def launch(self, compute_logits: ComputeLogits, batch: SamplingBatch, masks: GrammarMasks | None) -> Launched:
        """All of it."""
        return Known(sample_rows(compute_logits, batch, masks))


def make_sampler(model: Any, port: "DevicePort") -> Sampler:
    """The sampler that goes with a model's backend: kernels where it has a card with their configurations."""
    card = getattr(model, "card", None)
    if card is None:
        return TorchSampler()
    # Imported here: Triton takes a while, and most CPUs do without it.
    from vllm_obs.engine.sampling.triton_sampler import TritonSampler

    return TritonSampler(card.configs, port)
