"""Models made on the spot: a config.json of the real sizes, a tokenizer, no weights (--load-format dummy)."""

import json
import shutil
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).parents[2] / "engine/synthetic/tiny_model"

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_TINY: dict[str, Any] = {
    "vocab_size": 30100,  # `vllm-obs bench serve` draws ids up to 30,000
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}

MODELS = {"qwen3-0.6b": _QWEN, "llama-3-8b": _LLAMA}
"""The small one first: of what is cut short for want of time, the large one is the more."""


def write_model(directory: Path, name: str, *, is_tiny: bool) -> Path:
    """The folder of a model of that name, or of a tiny one of its kind."""
    values = MODELS[name] | (_TINY if is_tiny else {})
    path = directory / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(values))
    shutil.copyfile(TOKENIZER / "tokenizer_config.json", path / "tokenizer_config.json")
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(_with_words(tokenizer, values["vocab_size"])))
    return path


def _with_words(tokenizer: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """The tokenizer with a word for every id of the model: no text is ever read as one of the new ones."""
    words = tokenizer["model"]["vocab"]
    known = {*words.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    words |= {f"word{number}": number for number in range(vocab_size) if number not in known}
    return tokenizer
