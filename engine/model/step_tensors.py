"""What a step of compiled layers computes on, and where it keeps what passes between kernels."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.model.compiled_layer import CompiledLayer
from vllm_obs.engine.model.interface import Progress, unwatched
from vllm_obs.engine.model.linear_calls import room_for_codes


@dataclass(frozen=True)
class StepTensors:
    """What a step computes on. residual: float32 (T, hidden). positions: int64 (T,). caches: one a layer.

    `on_layer` is called after each layer.
    """

    residual: torch.Tensor
    positions: torch.Tensor
    batch: AttentionBatch
    caches: list[torch.Tensor]
    on_layer: Progress = unwatched


class StepRoom:
    """Where a step keeps what passes between kernels; float32, one row a token.

    `partial` is a shard's part of what is added to the residual stream.
    """

    def __init__(self, layer: CompiledLayer, residual: torch.Tensor, num_code_bytes: int, is_shared: bool) -> None:
        num_tokens = len(residual)
        self.normed = torch.empty_like(residual)
        self.partial = torch.empty_like(residual) if is_shared else None
        self.qkv = residual.new_empty(num_tokens, layer.qkv.padded_outputs)
        self.attended = residual.new_empty(num_tokens, layer.output.num_inputs)
        self.gated = residual.new_empty(num_tokens, layer.down.num_inputs)
        self.codes = room_for_codes(num_tokens, num_code_bytes)
