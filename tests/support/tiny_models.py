"""Tiny random models in Hugging Face's form, one for each architecture, written to a directory."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vllm_obs.engine.model.hf_architecture import hf_architecture
from vllm_obs.engine.model.tensor_names import expected_tensors

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
"""A llama; every test changes what it is about."""


def random_tensors(values: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors for a config.json, large enough for attention and norms to matter."""
    generator = torch.Generator().manual_seed(seed)
    architecture = hf_architecture(values, "test")
    tensors = {}
    for name, shape in expected_tensors(architecture):
        tensor = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.3 * tensor if name.endswith("norm.weight") else 2 * tensor / shape[-1] ** 0.5
    return tensors


def write_model(
    directory: Path, values: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None, num_files: int = 1
) -> Path:
    """config.json and safetensors: one file, or several with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))
    tensors = random_tensors(values) if tensors is None else tensors
    if num_files == 1:
        save_file(tensors, directory / "model.safetensors")
        return directory
    weight_map = {}
    for number in range(num_files):
        file = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        names = sorted(tensors)[number::num_files]
        save_file({name: tensors[name] for name in names}, directory / file)
        weight_map |= dict.fromkeys(names, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
