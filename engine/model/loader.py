"""From a configuration to a decoder with its weights in place."""

from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.paged import PagedAttention
from vllm_obs.engine.config import ModelArchitecture, VllmConfig
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.interface import DecoderModel
from vllm_obs.engine.model.layers import DecoderLayer, RMSNorm
from vllm_obs.engine.model.linear import Linear, PlainLinear
from vllm_obs.engine.model.rope import interleaved_order, rotation_table
from vllm_obs.engine.model.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix
from vllm_obs.engine.model.weights import Weights, open_weights


def load_model(config: VllmConfig) -> DecoderModel:
    """The decoder a configuration names, on its device. ConfigError when its files do not hold it."""
    model = config.model
    builder = _Builder(
        model.architecture, open_weights(model), getattr(torch, model.dtype), torch.device(model.device)
    )
    return builder.decoder(model.max_model_len)


@dataclass
class _Builder:
    architecture: ModelArchitecture
    weights: Weights
    dtype: torch.dtype
    device: torch.device

    def decoder(self, max_model_len: int) -> Decoder:
        embedding = self._read(EMBEDDING)
        head = embedding if self.architecture.tie_word_embeddings else self._read(LM_HEAD)
        return Decoder(
            architecture=self.architecture,
            cache_dtype=self.dtype,
            embedding=embedding,
            rotations=rotation_table(self.architecture, max_model_len).to(self.device),
            layers=[self._layer(number) for number in range(self.architecture.num_layers)],
            final_norm=self._norm(FINAL_NORM),
            lm_head=PlainLinear(head),
        )

    def _layer(self, number: int) -> DecoderLayer:
        prefix = layer_prefix(number)
        return DecoderLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight"),
            qkv=self._qkv(prefix + "self_attn."),
            query_norm=self._head_norm(prefix + "self_attn.q_norm.weight"),
            key_norm=self._head_norm(prefix + "self_attn.k_norm.weight"),
            attention=self._attention(number),
            output=self._linear([prefix + "self_attn.o_proj"]),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight"),
            gate_up=self._linear([prefix + "mlp.gate_proj", prefix + "mlp.up_proj"]),
            down=self._linear([prefix + "mlp.down_proj"]),
        )

    def _attention(self, number: int) -> PagedAttention:
        shape = self.architecture
        window = None if number in shape.full_attention_layers else shape.sliding_window
        return PagedAttention(shape.num_heads, shape.num_kv_heads, shape.head_dim, window)

    def _read(self, name: str) -> torch.Tensor:
        return self.weights.read(name).to(self.dtype).to(self.device)

    def _norm(self, name: str) -> RMSNorm:
        weight = self.weights.read(name).float().to(self.device)
        return RMSNorm(weight, self.architecture.rms_norm_eps)

    def _head_norm(self, name: str) -> RMSNorm | None:
        if not self.architecture.qk_norm:
            return None
        norm = self._norm(name)
        return RMSNorm(norm.weight[interleaved_order(1, self.architecture.head_dim)], norm.eps)

    def _qkv(self, prefix: str) -> Linear:
        """Queries, keys and values in one matrix, query and key rows in interleaved rotary order."""
        shape = self.architecture
        orders = [
            interleaved_order(shape.num_heads, shape.head_dim),
            interleaved_order(shape.num_kv_heads, shape.head_dim),
            torch.arange(shape.num_kv_heads * shape.head_dim),
        ]
        return self._linear(
            [prefix + part for part in ("q_proj", "k_proj", "v_proj")],
            torch.cat([order + sum(map(len, orders[:place])) for place, order in enumerate(orders)]),
        )

    def _linear(self, parts: list[str], order: torch.Tensor | None = None) -> Linear:
        """The matrices of these names one above the other (with their biases), rows in `order`."""
        weight = torch.cat([self._read(part + ".weight") for part in parts])
        bias = self._bias(parts)
        if order is not None:
            weight, bias = weight[order], None if bias is None else bias[order]
        return PlainLinear(weight, bias)

    def _bias(self, parts: list[str]) -> torch.Tensor | None:
        shapes = self.weights.shapes()
        if not all(part + ".bias" in shapes for part in parts):
            return None
        return torch.cat([self._read(part + ".bias") for part in parts])
