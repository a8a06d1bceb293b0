"""From a configuration to a decoder with its weights in place."""

import math
from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.paged import PagedAttention
from vllm_obs.engine.config import ModelArchitecture, VllmConfig
from vllm_obs.engine.model.bert_loader import load_bert
from vllm_obs.engine.model.compiled_loader import load_compiled
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.interface import DecoderModel
from vllm_obs.engine.model.layer_tensors import LayerTensors
from vllm_obs.engine.model.layers import DecoderLayer, RMSNorm
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.numerics import Numerics, choose_numerics
from vllm_obs.engine.model.parallel_load import each_layer
from vllm_obs.engine.model.rope import rotation_table
from vllm_obs.engine.model.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, expected_tensors, layer_prefix
from vllm_obs.engine.model.weights import Weights, open_weights
from vllm_obs.engine.startup_phases import startup_part


def load_model(config: VllmConfig) -> DecoderModel:
    """The model a configuration names, on its device. ConfigError when its files do not hold it."""
    with startup_part("open model"):
        weights = open_weights(config.model)
    if config.model.architecture.is_encoder:
        return load_bert(config.model, weights)
    return load_compiled(config, weights) or load_plain(config, weights)


def load_plain(config: VllmConfig, weights: Weights) -> Decoder:
    """The decoder of torch operations, for any device."""
    model = config.model
    num_parameters = sum(math.prod(shape) for _, shape in expected_tensors(model.architecture))
    numerics = choose_numerics(getattr(torch, model.dtype), torch.device(model.device), num_parameters)
    tensors = LayerTensors(model.architecture, weights)
    return _Builder(model.architecture, tensors, numerics).decoder(model.max_model_len)


@dataclass(frozen=True)
class _Builder:
    """Puts tensors where the machine multiplies them fastest."""

    architecture: ModelArchitecture
    tensors: LayerTensors
    numerics: Numerics

    def decoder(self, max_model_len: int) -> Decoder:
        weights = self.tensors.weights
        values = weights.read(EMBEDDING)
        embedding = self.numerics.placed(values)
        head, placed_head = values, embedding
        if not self.architecture.tie_word_embeddings:
            head = weights.read(LM_HEAD)
            placed_head = self.numerics.placed(head)
        return Decoder(
            architecture=self.architecture,
            numerics=self.numerics,
            embedding=embedding,
            rotations=rotation_table(self.architecture, max_model_len).to(self.numerics.device),
            layers=each_layer(self._layer, self.architecture.num_layers),
            final_norm=self._norm(FINAL_NORM, torch.float32),
            lm_head=self.numerics.lm_head(head, placed_head),
        )

    def _layer(self, number: int) -> DecoderLayer:
        prefix, tensors = layer_prefix(number), self.tensors
        return DecoderLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight", self.numerics.activations),
            qkv=self._linear(tensors.qkv(prefix + "self_attn.")),
            query_norm=self._head_norm(prefix + "self_attn.q_norm.weight"),
            key_norm=self._head_norm(prefix + "self_attn.k_norm.weight"),
            attention=self._attention(number),
            output=self._linear(tensors.merged([prefix + "self_attn.o_proj"])),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight", self.numerics.activations),
            gate_up=self._linear(tensors.merged([prefix + "mlp.gate_proj", prefix + "mlp.up_proj"])),
            down=self._linear(tensors.merged([prefix + "mlp.down_proj"])),
        )

    def _attention(self, number: int) -> PagedAttention:
        shape, numerics = self.architecture, self.numerics
        return PagedAttention(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            window=self.tensors.window(number),
            dtype=numerics.attention,
            output_dtype=numerics.activations,
        )

    def _norm(self, name: str, dtype: torch.dtype) -> RMSNorm:
        weight = self.tensors.weights.read(name).to(self.numerics.device)
        return RMSNorm(weight, self.architecture.rms_norm_eps, dtype)

    def _head_norm(self, name: str) -> RMSNorm | None:
        weight = self.tensors.head_norm(name)
        if weight is None:
            return None
        return RMSNorm(weight.to(self.numerics.device), self.architecture.rms_norm_eps, torch.float32)

    def _linear(self, parts: tuple[torch.Tensor, torch.Tensor | None]) -> Linear:
        matrix, bias = parts
        return self.numerics.linear(matrix, None if bias is None else bias.to(self.numerics.device))
