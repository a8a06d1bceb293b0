"""The default model, read by the gguf library and computed plainly in float64: our code only finds its file."""

from typing import Any

import numpy as np
import torch
from default_model import default_model_config
from gguf import GGUFReader
from gguf.quants import dequantize
from torch.nn.functional import silu


class ReferenceModel:
    """A llama decoder over one sequence, without a cache; its weights are about a gigabyte."""

    def __init__(self) -> None:
        reader = GGUFReader(default_model_config().path)
        self._fields = {
            name.removeprefix("llama."): field.contents()
            for name, field in reader.fields.items()
            if name.startswith("llama.")
        }
        self._tensors = {entry.name: _values(entry) for entry in reader.tensors}
        self._num_heads = int(self._fields["attention.head_count"])
        self._num_kv_heads = int(self._fields["attention.head_count_kv"])

    def logprobs(self, token_ids: list[int]) -> np.ndarray:
        """float64 (tokens, vocabulary): what may follow each token."""
        embedding = self._tensors["token_embd.weight"]
        with torch.inference_mode():
            x = embedding[torch.tensor(token_ids)]
            for layer in range(int(self._fields["block_count"])):
                x = self._layer(x, f"blk.{layer}.")
            logits = self._norm(x, "output_norm.weight") @ embedding.T
            logprobs: np.ndarray = logits.log_softmax(-1).numpy()
        return logprobs

    def _layer(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        def project(y: torch.Tensor, name: str) -> torch.Tensor:
            return y @ self._tensors[f"{prefix}{name}.weight"].T

        y = self._norm(x, f"{prefix}attn_norm.weight")
        heads = [project(y, f"attn_{name}").unflatten(-1, (num, -1)) for name, num in self._parts()]
        x = x + project(self._attention(*heads), "attn_output")
        y = self._norm(x, f"{prefix}ffn_norm.weight")
        return x + project(silu(project(y, "ffn_gate")) * project(y, "ffn_up"), "ffn_down")

    def _parts(self) -> list[tuple[str, int]]:
        return [("q", self._num_heads), ("k", self._num_kv_heads), ("v", self._num_kv_heads)]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        epsilon = self._fields["attention.layer_norm_rms_epsilon"]
        return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * self._tensors[name]

    def _attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """(tokens, heads, width) each; several heads of the queries share one of the others."""
        shared = self._num_heads // self._num_kv_heads
        queries, keys = self._rotated(queries), self._rotated(keys).repeat_interleave(shared, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[-1] ** 0.5
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(shared, 1)).flatten(1)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Neighbours are rotated together: so llama.cpp stores the rows of queries and keys."""
        width = x.shape[-1]
        steps = torch.arange(0, width, 2, dtype=torch.float64) / width
        angles = torch.arange(len(x))[:, None] * float(self._fields["rope.freq_base"]) ** -steps
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        ).unsqueeze(1)
        return torch.view_as_real(turned).flatten(2)


def _values(entry: Any) -> torch.Tensor:
    return torch.from_numpy(dequantize(entry.data, entry.tensor_type).astype(np.float64))
