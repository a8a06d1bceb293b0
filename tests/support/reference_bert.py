"""BERT's forward pass written down plainly in numpy and float64, from the papers, for one text at a time."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def reference_states(values: Mapping[str, Any], tensors: Mapping[str, Array], token_ids: list[int]) -> Array:
    """Hidden states (T, hidden) of one text; `values` is a config.json, names are without a prefix."""
    return _Reference(values, tensors).states(token_ids)


class _Reference:
    def __init__(self, values: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self._values = values
        self._tensors = tensors

    def states(self, token_ids: list[int]) -> Array:
        is_bert = self._values["architectures"] == ["BertModel"]
        first = 0 if is_bert else int(self._values["pad_token_id"]) + 1
        x = self._tensor("embeddings.word_embeddings.weight")[token_ids]
        x = x + self._tensor("embeddings.position_embeddings.weight")[first : first + len(token_ids)]
        x = self._norm(x + self._tensor("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for number in range(int(self._values["num_hidden_layers"])):
            x = self._layer(x, f"encoder.layer.{number}.")
        return x

    def _layer(self, x: Array, prefix: str) -> Array:
        num_heads = int(self._values["num_attention_heads"])
        width = x.shape[1] // num_heads
        query, key, value = (
            self._linear(x, f"{prefix}attention.self.{name}") for name in ("query", "key", "value")
        )
        heads = []
        for head in range(num_heads):
            part = slice(head * width, (head + 1) * width)
            scores = np.exp(query[:, part] @ key[:, part].T / math.sqrt(width))
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ value[:, part])
        attended = self._linear(np.concatenate(heads, axis=1), prefix + "attention.output.dense")
        x = self._norm(x + attended, prefix + "attention.output.LayerNorm")
        inner = self._linear(x, prefix + "intermediate.dense")
        inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        return self._norm(x + self._linear(inner, prefix + "output.dense"), prefix + "output.LayerNorm")

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._tensor(name + ".weight").T + self._tensor(name + ".bias")

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = (centred**2).mean(axis=1, keepdims=True)
        scale = self._tensor(name + ".weight") / np.sqrt(variance + float(self._values["layer_norm_eps"]))
        return centred * scale + self._tensor(name + ".bias")

    def _tensor(self, name: str) -> Array:
        return np.asarray(self._tensors[name], np.float64)
