"""How large a model is and what a token costs it, worked out from its shape alone."""

from typing import NamedTuple

from vllm_obs.engine.config import Dtype, ModelArchitecture

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOPS_A_WEIGHT = 2
"""One multiplication and one addition."""


class ModelSize(NamedTuple):
    """`num_weights` are kept; `num_multiplied` of them multiply every token (a tied embedding does so once)."""

    num_weights: int
    num_multiplied: int

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of one token through all layers and the head, without attention's own."""
        return _FLOPS_A_WEIGHT * self.num_multiplied

    def weight_bytes(self, dtype: Dtype) -> int:
        """Bytes of all weights in these numbers; weights kept in four bits take less."""
        return self.num_weights * ITEM_BYTES[dtype]


def model_size(architecture: ModelArchitecture) -> ModelSize:
    """The size of a model of this shape; norms, a thousandth of it, are left out."""
    hidden, queries = architecture.hidden_size, architecture.num_heads * architecture.head_dim
    keys = architecture.num_kv_heads * architecture.head_dim
    attention = hidden * (2 * queries + 2 * keys)
    num_matrices = 2 if architecture.is_encoder else 3
    layers = architecture.num_layers * (attention + num_matrices * hidden * architecture.intermediate_size)
    embedding = architecture.vocab_size * hidden
    num_embeddings = 1 if architecture.tie_word_embeddings else 2
    num_heads = 0 if architecture.is_encoder else 1
    return ModelSize(layers + num_embeddings * embedding, layers + num_heads * embedding)
