"""One decoder layer: attention and gated MLP, each behind an RMS norm and added to the residual stream."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.attention.paged import PagedAttention
from vllm_obs.engine.attention.step_indices import StepIndices
from vllm_obs.engine.model.linear import Linear


class RMSNorm:
    """Root-mean-square norm over the last axis, computed in float32; the result is in `dtype`."""

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> None:
        size = weight.shape[-1]
        self.weight = weight.float()
        self.eps = eps
        self._dtype = dtype
        self._scaled_weight = self.weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(self._dtype)
        # F.rms_norm is six operations on a CPU. The root of (sum of squares + size * eps) is the hypotenuse over
        # the vector's length and a constant, which makes four.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        normed = x / torch.hypot(length, self._floor, out=length)
        return normed.mul_(self._scaled_weight).to(self._dtype)


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
        """The heads' outputs (T, heads * head_dim) for the residual stream (T, hidden) in float32."""
        qkv = self.qkv(self.input_norm(residual)).float()
        self._rotate(qkv.view(qkv.shape[0], -1, self.attention.head_dim), rotations)
        return self.attention(qkv, layer_cache, indices)

    def _rotate(self, heads: torch.Tensor, rotations: torch.Tensor) -> None:
        """Apply the q and k norms, if any, and the rotary embedding to float32 (T, heads, head_dim), in place."""
        num_queries = self.attention.num_heads
        num_rotated = num_queries + self.attention.num_kv_heads
        if self.query_norm is not None and self.key_norm is not None:
            heads[:, :num_queries] = self.query_norm(heads[:, :num_queries])
            heads[:, num_queries:num_rotated] = self.key_norm(heads[:, num_queries:num_rotated])
        pairs = heads.view(*heads.shape[:2], -1, 2)[:, :num_rotated]
        torch.view_as_complex(pairs).mul_(rotations)

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The residual stream after this layer, from the stream before it and the heads' outputs."""
        residual = residual + self.output(attended)
        gate, up = self.gate_up(self.post_attention_norm(residual)).chunk(2, -1)
        return residual.add_(self.down(F.silu(gate).mul_(up)))
