"""One decoder layer: attention and gated MLP, each behind an RMS norm and added to the residual stream."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.attention.paged import PagedAttention
from vllm_obs.engine.attention.step_indices import StepIndices
from vllm_obs.engine.model.linear import Linear


@dataclass(frozen=True)
class RMSNorm:
    """Root-mean-square norm over the last axis, in float32."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True)
class DecoderLayer:
    """Weights and operations of one layer; query and key heads are in interleaved rotary order."""

    input_norm: RMSNorm
    qkv: Linear
    query_norm: RMSNorm | None
    key_norm: RMSNorm | None
    attention: PagedAttention
    output: Linear
    post_attention_norm: RMSNorm
    gate_up: Linear
    down: Linear

    def attend(
        self, residual: torch.Tensor, rotations: torch.Tensor, layer_cache: torch.Tensor, indices: StepIndices
    ) -> torch.Tensor:
        """The heads' outputs (T, heads * head_dim) for the residual stream (T, hidden)."""
        qkv = self.qkv(self.input_norm(residual))
        self._rotate(qkv, rotations)
        return self.attention(qkv, layer_cache, indices)

    def _rotate(self, qkv: torch.Tensor, rotations: torch.Tensor) -> None:
        """Apply q and k norms, if any, and the rotary embedding, in place."""
        shape = self.attention
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            queries = heads[:, : shape.num_heads]
            keys = heads[:, shape.num_heads : shape.num_heads + shape.num_kv_heads]
            queries.copy_(self.query_norm(queries))
            keys.copy_(self.key_norm(keys))
        rotated = heads[:, : shape.num_heads + shape.num_kv_heads].view(
            *heads.shape[:1], -1, shape.head_dim // 2, 2
        )
        torch.view_as_complex(rotated).mul_(rotations)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The residual stream after this layer, from the stream before it and the heads' outputs."""
        residual = residual + self.output(attended)
        gate, up = self.gate_up(self.post_attention_norm(residual)).chunk(2, -1)
        return residual + self.down(F.silu(gate) * up)
