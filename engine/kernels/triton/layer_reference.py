"""What surrounds attention in a layer, in plain torch: what the kernels of the same names are held to."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.kernels.triton.attention_reference import reference_kv_write
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape
from vllm_obs.engine.kernels.triton.qkv import HeadNorms, Places


def reference_rms_norm(
    residual: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the residual stream afterwards, the norm of it), both float64 (T, size)."""
    wide = residual.double() if added is None else residual.double() + added.double()
    return wide, wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def reference_rotary(heads: torch.Tensor, rotations: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """float64 (T, heads, head_dim) of heads (T, heads, head_dim), all of them rotated."""
    pairs = torch.view_as_complex(heads.double().reshape(*heads.shape[:2], heads.shape[2] // 2, 2))
    factors = torch.view_as_complex(rotations.double()[positions])
    return torch.view_as_real(pairs * factors[:, None]).flatten(-2)


def reference_qkv_split(
    qkv: torch.Tensor, norms: HeadNorms | None, places: Places, layer_cache: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """Queries in float64 (T, heads * head_dim); keys and values go into the cache."""
    num_heads, num_rotated = shape.num_heads, shape.num_heads + shape.num_kv_heads
    heads = qkv.reshape(len(qkv), num_rotated + shape.num_kv_heads, shape.head_dim).double()
    queries, keys, values = heads[:, :num_heads], heads[:, num_heads:num_rotated], heads[:, num_rotated:]
    if norms is not None:
        queries = reference_rms_norm(queries, None, norms.query_weight, norms.eps)[1]
        keys = reference_rms_norm(keys, None, norms.key_weight, norms.eps)[1]
    queries, keys = (reference_rotary(part, places.rotations, places.positions) for part in (queries, keys))
    scales = (shape.key_scale, shape.value_scale)
    reference_kv_write(keys, values, places.slots, layer_cache, scales)
    return queries.flatten(1)


def reference_silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """float64 (T, size)."""
    gate, up = gate_up.double().chunk(2, -1)
    return F.silu(gate) * up
