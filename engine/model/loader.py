"""From a configuration to a decoder with its weights in place."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from vllm_obs.engine.attention.paged import PagedAttention
from vllm_obs.engine.config import ModelArchitecture, VllmConfig
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.interface import DecoderModel
from vllm_obs.engine.model.layers import DecoderLayer, RMSNorm
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.matrix import dense, stacked
from vllm_obs.engine.model.numerics import Numerics, choose_numerics
from vllm_obs.engine.model.rope import interleaved_order, rotation_table
from vllm_obs.engine.model.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, expected_tensors, layer_prefix
from vllm_obs.engine.model.weights import Weights, open_weights

_MAX_BUILDERS = 8
"""Each has a layer's weights in several forms at hand, so more would cost memory."""


def load_model(config: VllmConfig) -> DecoderModel:
    """The decoder a configuration names, on its device. ConfigError when its files do not hold it."""
    model = config.model
    num_parameters = sum(math.prod(shape) for _, shape in expected_tensors(model.architecture))
    numerics = choose_numerics(getattr(torch, model.dtype), torch.device(model.device), num_parameters)
    builder = _Builder(model.architecture, open_weights(model), numerics)
    return builder.decoder(model.max_model_len)


@dataclass(frozen=True)
class _Builder:
    """Puts tensors together as the layers want them: merged matrices, rotary pairs side by side."""

    architecture: ModelArchitecture
    weights: Weights
    numerics: Numerics

    def decoder(self, max_model_len: int) -> Decoder:
        values = self.weights.read(EMBEDDING)
        embedding = self.numerics.placed(values)
        head, placed_head = values, embedding
        if not self.architecture.tie_word_embeddings:
            head = self.weights.read(LM_HEAD)
            placed_head = self.numerics.placed(head)
        return Decoder(
            architecture=self.architecture,
            numerics=self.numerics,
            embedding=embedding,
            rotations=rotation_table(self.architecture, max_model_len).to(self.numerics.device),
            layers=self._layers(),
            final_norm=self._norm(FINAL_NORM, torch.float32),
            lm_head=self.numerics.lm_head(head, placed_head),
        )

    def _layers(self) -> list[DecoderLayer]:
        """Built several at a time, each by one thread: numpy dequantises on one, and packing is short work."""
        num_threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(
                min(num_threads, _MAX_BUILDERS), initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                return list(pool.map(self._layer, range(self.architecture.num_layers)))
        finally:
            torch.set_num_threads(num_threads)

    def _layer(self, number: int) -> DecoderLayer:
        prefix = layer_prefix(number)
        return DecoderLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight", self.numerics.activations),
            qkv=self._qkv(prefix + "self_attn."),
            query_norm=self._head_norm(prefix + "self_attn.q_norm.weight"),
            key_norm=self._head_norm(prefix + "self_attn.k_norm.weight"),
            attention=self._attention(number),
            output=self._linear([prefix + "self_attn.o_proj"]),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight", self.numerics.activations),
            gate_up=self._linear([prefix + "mlp.gate_proj", prefix + "mlp.up_proj"]),
            down=self._linear([prefix + "mlp.down_proj"]),
        )

    def _attention(self, number: int) -> PagedAttention:
        shape, numerics = self.architecture, self.numerics
        return PagedAttention(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            window=None if number in shape.full_attention_layers else shape.sliding_window,
            dtype=numerics.attention,
            output_dtype=numerics.activations,
        )

    def _norm(self, name: str, dtype: torch.dtype) -> RMSNorm:
        weight = self.weights.read(name).to(self.numerics.device)
        return RMSNorm(weight, self.architecture.rms_norm_eps, dtype)

    def _head_norm(self, name: str) -> RMSNorm | None:
        if not self.architecture.qk_norm:
            return None
        weight = self.weights.read(name)[interleaved_order(1, self.architecture.head_dim)]
        return RMSNorm(weight.to(self.numerics.device), self.architecture.rms_norm_eps, torch.float32)

    def _qkv(self, prefix: str) -> Linear:
        """Queries, keys and values in one matrix, query and key rows in interleaved rotary order."""
        shape = self.architecture
        rotary = interleaved_order(shape.num_heads + shape.num_kv_heads, shape.head_dim)
        num_values = shape.num_kv_heads * shape.head_dim
        order = torch.cat((rotary, torch.arange(len(rotary), len(rotary) + num_values)))
        return self._linear([prefix + part for part in ("q_proj", "k_proj", "v_proj")], order)

    def _linear(self, parts: list[str], order: torch.Tensor | None = None) -> Linear:
        """The matrices of these names one above the other, with their biases, rows in `order`."""
        matrix = stacked([self.weights.read_matrix(part + ".weight") for part in parts], order)
        return self.numerics.linear(matrix, self._bias([part + ".bias" for part in parts], order))

    def _bias(self, names: list[str], order: torch.Tensor | None) -> torch.Tensor | None:
        """Float32; None where the model has none."""
        shapes = self.weights.shapes()
        if any(name not in shapes for name in names):
            return None
        biases = [self.weights.read(name).float() for name in names]
        return dense(stacked(biases, order)).to(self.numerics.device)
