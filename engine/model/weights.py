"""Where a model's tensors come from: one interface over safetensors, GGUF and random numbers."""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from vllm_obs.engine.config import ModelArchitecture, ModelConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.bert_tensors import bare_names
from vllm_obs.engine.model.gguf_weights import GGUFWeights
from vllm_obs.engine.model.safetensors_header import StoredTensor, read_tensor_table
from vllm_obs.engine.model.tensor_names import Shape, check_tensors, expected_tensors
from vllm_obs.engine.model.tensor_part import WHOLE, TensorPart, span


class Weights(Protocol):
    """The tensors of one model, in host memory; random ones may be on the device."""

    def shapes(self) -> dict[str, Shape]:
        """The shape of every tensor, by name."""

    def read(self, name: str, part: TensorPart = WHOLE) -> torch.Tensor:
        """A tensor, or a part of one, in the floating dtype it was stored in (quantised ones: float32)."""


def open_weights(model: ModelConfig) -> Weights:
    """The weights a configuration names. ConfigError names the first tensor missing or of another shape."""
    if model.source == "dummy":
        return _dummy_weights(model)
    opened: Weights = (
        GGUFWeights(model.path, model.architecture)
        if model.source == "gguf"
        else SafetensorsWeights(Path(model.path), model.architecture.is_encoder)
    )
    check_tensors(model.architecture, opened.shapes(), model.path)
    return opened


def _dummy_weights(model: ModelConfig) -> "DummyWeights":
    """Drawn where they are needed."""
    if model.device == "cpu":
        return DummyWeights(model.architecture, model.seed)
    return DummyWeights(model.architecture, model.seed, model.device, getattr(torch, model.dtype))


class SafetensorsWeights:
    """The tensors of a Hugging Face directory, in one safetensors file or many; an encoder's by bare names."""

    def __init__(self, directory: Path, is_encoder: bool = False) -> None:
        table = read_tensor_table(directory)
        self._table: dict[str, StoredTensor] = bare_names(table) if is_encoder else table
        self._shapes = {name: stored.shape for name, stored in self._table.items()}

    def shapes(self) -> dict[str, Shape]:
        return self._shapes

    def read(self, name: str, part: TensorPart = WHOLE) -> torch.Tensor:
        stored = self._table[name]
        try:
            with safe_open(stored.file, framework="pt") as file:
                if part == WHOLE:
                    tensor: torch.Tensor = file.get_tensor(stored.name or name)
                else:
                    tensor = _cut(file.get_slice(stored.name or name), part, len(stored.shape))
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{stored.file}: tensor {name} cannot be read: {error}") from None
        return tensor


class DummyWeights:
    """Random weights, a function of seed, name and kind of device alone, scaled to keep activations near 1.

    On a GPU they are drawn there, in the model's dtype: a large model takes the host minutes.
    """

    def __init__(
        self,
        architecture: ModelArchitecture,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._shapes = dict(expected_tensors(architecture))
        self._numbers = {name: number for number, name in enumerate(self._shapes)}
        self._seed = seed
        self._device = device
        self._dtype = dtype
        import_module("torch._prims.rng_prims")  # what generators need and `import_torch` leaves out on a CPU

    def shapes(self) -> dict[str, Shape]:
        return self._shapes

    def read(self, name: str, part: TensorPart = WHOLE) -> torch.Tensor:
        shape = self._shapes[name]
        if name.lower().endswith("norm.weight"):
            return torch.ones(shape)
        generator = torch.Generator(self._device).manual_seed((self._seed << 20) + self._numbers[name])
        whole = torch.randn(shape, generator=generator, device=self._device, dtype=self._dtype)
        whole.mul_(float(shape[-1]) ** -0.5)
        return whole if part == WHOLE else _cut(whole, part, len(shape))


def _cut(tensor: Any, part: TensorPart, num_dimensions: int) -> torch.Tensor:
    """Part of a tensor, or of one that still lies in its file; a copy, so that no more than the part is kept."""
    rows, columns = span(part.rows), span(part.columns)
    found: torch.Tensor = tensor[rows, columns] if num_dimensions == 2 else tensor[rows]
    return found.clone(memory_format=torch.contiguous_format)
