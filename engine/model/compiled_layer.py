"""A model's layers as compiled kernels take them."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.model.linear_calls import Matrix
from vllm_obs.engine.model.peers import Peers


@dataclass(frozen=True)
class CompiledLayer:
    """A layer's weights as kernels take them: norms and biases in float32, matrices packed.

    `qkv_bias` is padded as the matrix is. `window` is in tokens, 0 for none.
    """

    input_norm: torch.Tensor
    qkv: Matrix
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Matrix
    post_attention_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    window: int


@dataclass(frozen=True)
class CompiledLayers:
    """A model's layers, or those of one stage of it, the first of which has the number `first`.

    Without a `final_norm` the model goes on elsewhere. Where shards share each matrix, `peers` have the others.
    """

    layers: list[CompiledLayer]
    eps: float
    final_norm: torch.Tensor | None
    first: int = 0
    peers: Peers | None = None
