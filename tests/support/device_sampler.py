"""A sampler whose tokens are on a fake device: the host has them once it has waited for it."""

from dataclasses import dataclass

import torch
from fake_device import FakeDevice

from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import SamplingBatch
from vllm_obs.engine.sampling.each_row import sample_rows
from vllm_obs.engine.sampling.launched import ComputeLogits
from vllm_obs.engine.sampling.sampler import SampledTokens
from vllm_obs.engine.worker.device_port import Results


@dataclass(frozen=True)
class OnDevice:
    """What was sampled; `fetch` waits."""

    tokens: torch.Tensor
    sampled: SampledTokens
    fetch: Results

    def result(self) -> SampledTokens:
        self.fetch()
        return self.sampled


@dataclass(frozen=True)
class DeviceSampler:
    """The sampler of torch, with its tokens behind a device's port."""

    port: FakeDevice

    def launch(self, compute_logits: ComputeLogits, batch: SamplingBatch, masks: GrammarMasks | None) -> OnDevice:
        sampled = sample_rows(compute_logits, batch, masks)
        tokens = torch.tensor(sampled.token_ids, dtype=torch.int64)
        return OnDevice(tokens, sampled, self.port.download([tokens]))
