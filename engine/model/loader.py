"""From a configuration to a decoder with its weights in place."""

import logging
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vllm_obs.engine.attention.backend import NOTHING_COMPILED, Backend, choose_backend
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
from vllm_obs.engine.model.peers import ALONE, Place
from vllm_obs.engine.model.rope import rotation_table
from vllm_obs.engine.model.sharded import RowParallelLinear, embedding_of, head_of
from vllm_obs.engine.model.stage_ends import Inlet, ReceivedStates, SentStates
from vllm_obs.engine.model.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, expected_tensors, layer_prefix
from vllm_obs.engine.model.weights import Weights, open_weights
from vllm_obs.engine.startup_phases import startup_part

_logger = logging.getLogger(__name__)


def load_model(config: VllmConfig, place: Place = ALONE) -> DecoderModel:
    """The model a configuration names, or a rank's part of it, on its device.

    ConfigError when its files do not hold it.
    """
    with startup_part("open model"):
        weights = open_weights(config.model)
    if config.model.architecture.is_encoder:
        return load_bert(config.model, weights)
    decoder, backend = _load_decoder(config, weights, place)
    _logger.info("Attention backend: %s (%s)", backend.name, backend.reason)
    return decoder


def _load_decoder(config: VllmConfig, weights: Weights, place: Place) -> tuple[DecoderModel, Backend]:
    device = config.model.device
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    backend = choose_backend(config.model.attention_backend, device, capability)
    if backend.name == "compiled":
        if (compiled := load_compiled(config, weights, place)) is not None:
            return compiled, backend
        backend = NOTHING_COMPILED
    plain = load_plain(config, weights, place)
    if backend.name != "triton":
        return plain, backend
    # Imported here: Triton takes a while, and most CPUs do without it.
    from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder

    return TritonDecoder.over(plain, TritonCard.of_device(capability)), backend


def load_plain(config: VllmConfig, weights: Weights, place: Place = ALONE) -> Decoder:
    """The decoder of torch operations, for any device, or a rank's part of it."""
    model, parallel = config.model, config.parallel
    num_parameters = sum(math.prod(shape) for _, shape in expected_tensors(model.architecture))
    num_own = num_parameters // (parallel.tensor_parallel_size * parallel.pipeline_parallel_size)
    numerics = choose_numerics(getattr(torch, model.dtype), torch.device(model.device), num_own)
    tensors = LayerTensors(model.architecture, weights, place.partition)
    return _Builder(model.architecture, tensors, numerics, place).decoder(model.max_model_len)


@dataclass(frozen=True)
class _Builder:
    """Puts tensors where the machine multiplies them fastest."""

    architecture: ModelArchitecture
    tensors: LayerTensors
    numerics: Numerics
    place: Place

    def decoder(self, max_model_len: int) -> Decoder:
        (partition, peers), whole = self.place, self.architecture
        own_layers = partition.layers(whole)
        words = self._words(EMBEDDING) if partition.is_first_stage or self._is_tied_head else None
        return Decoder(
            architecture=partition.local(whole),
            numerics=self.numerics,
            inlet=self._inlet(words),
            rotations=rotation_table(whole, max_model_len).to(self.numerics.device),
            layers=each_layer(lambda number: self._layer(own_layers[number]), len(own_layers)),
            outlet=self._norm(FINAL_NORM, torch.float32) if partition.is_last_stage else SentStates(peers),
            lm_head=self._head(words) if partition.is_last_stage else None,
        )

    @property
    def _is_tied_head(self) -> bool:
        return self.place.partition.is_last_stage and self.architecture.tie_word_embeddings

    def _words(self, name: str) -> "_Words":
        values = self.tensors.words(name)
        return _Words(values, self.numerics.placed(values))

    def _inlet(self, words: "_Words | None") -> Inlet:
        partition, peers = self.place
        if not partition.is_first_stage:
            return ReceivedStates(self.architecture.hidden_size, peers)
        assert words is not None
        return embedding_of(words.placed, self.place, self.architecture)

    def _head(self, words: "_Words | None") -> Linear:
        if not self.architecture.tie_word_embeddings:
            words = self._words(LM_HEAD)
        assert words is not None
        own_words = self.numerics.lm_head(*words) if len(words.values) else None
        return head_of(own_words, self.place, self.architecture)

    def _layer(self, number: int) -> DecoderLayer:
        prefix, tensors = layer_prefix(number), self.tensors
        return DecoderLayer(
            input_norm=self._norm(prefix + "input_layernorm.weight", self.numerics.activations),
            qkv=self._linear(tensors.qkv(prefix + "self_attn.")),
            query_norm=self._head_norm(prefix + "self_attn.q_norm.weight"),
            key_norm=self._head_norm(prefix + "self_attn.k_norm.weight"),
            attention=self._attention(number),
            output=self._summed(tensors.output(prefix + "self_attn.")),
            post_attention_norm=self._norm(prefix + "post_attention_layernorm.weight", self.numerics.activations),
            gate_up=self._linear(tensors.gate_up(prefix + "mlp.")),
            down=self._summed(tensors.down(prefix + "mlp.")),
        )

    def _attention(self, number: int) -> PagedAttention:
        shape, numerics, partition = self.architecture, self.numerics, self.place.partition
        return PagedAttention(
            num_heads=len(partition.heads(shape)),
            num_kv_heads=len(partition.kv_heads(shape)),
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

    def _summed(self, parts: tuple[torch.Tensor, torch.Tensor | None]) -> Linear:
        """Over the inputs that this shard has."""
        linear = self._linear(parts)
        partition, peers = self.place
        return linear if partition.num_shards == 1 else RowParallelLinear(linear, peers)


class _Words(NamedTuple):
    """A matrix with a row for each word: as it was read, and on its device."""

    values: torch.Tensor
    placed: torch.Tensor
