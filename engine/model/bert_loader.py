"""From tensors to an encoder with its weights in place."""

import math
from dataclasses import dataclass

import torch

from vllm_obs.engine.config import ModelArchitecture, ModelConfig
from vllm_obs.engine.model.bert import Bert, BertLayer, LayerNorm
from vllm_obs.engine.model.bert_tensors import (
    EMBEDDING_NORM,
    POSITIONS,
    TOKEN_TYPES,
    WORDS,
    bert_tensors,
    encoder_prefix,
)
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.numerics import Numerics, choose_numerics
from vllm_obs.engine.model.parallel_load import each_layer
from vllm_obs.engine.model.weights import Weights


def load_bert(model: ModelConfig, weights: Weights) -> Bert:
    """The encoder a configuration names, on its device."""
    num_parameters = sum(math.prod(shape) for _, shape in bert_tensors(model.architecture))
    numerics = choose_numerics(getattr(torch, model.dtype), torch.device(model.device), num_parameters)
    return _Builder(model.architecture, weights, numerics).bert()


@dataclass(frozen=True)
class _Builder:
    """Puts tensors where the machine multiplies them fastest."""

    architecture: ModelArchitecture
    weights: Weights
    numerics: Numerics

    def bert(self) -> Bert:
        return Bert(
            architecture=self.architecture,
            numerics=self.numerics,
            words=self.numerics.placed(self.weights.read(WORDS)),
            positions=self.numerics.placed(self.weights.read(POSITIONS)),
            token_type=self.numerics.placed(self.weights.read(TOKEN_TYPES)[0]),
            embedding_norm=self._norm(EMBEDDING_NORM),
            layers=each_layer(self._layer, self.architecture.num_layers),
        )

    def _layer(self, number: int) -> BertLayer:
        prefix = encoder_prefix(number)
        return BertLayer(
            num_heads=self.architecture.num_heads,
            numerics=self.numerics,
            qkv=self._linear(*(f"{prefix}attention.self.{part}" for part in ("query", "key", "value"))),
            attended=self._linear(prefix + "attention.output.dense"),
            attention_norm=self._norm(prefix + "attention.output.LayerNorm"),
            inner=self._linear(prefix + "intermediate.dense"),
            outer=self._linear(prefix + "output.dense"),
            output_norm=self._norm(prefix + "output.LayerNorm"),
        )

    def _linear(self, *names: str) -> Linear:
        """One product for the matrices of these names, one below the other."""
        matrix = torch.cat([self.weights.read(name + ".weight") for name in names])
        bias = torch.cat([self.weights.read(name + ".bias") for name in names])
        return self.numerics.linear(matrix, bias.to(self.numerics.device))

    def _norm(self, name: str) -> LayerNorm:
        weight, bias = (
            self.weights.read(name + end).float().to(self.numerics.device) for end in (".weight", ".bias")
        )
        return LayerNorm(weight, bias, self.architecture.rms_norm_eps)
