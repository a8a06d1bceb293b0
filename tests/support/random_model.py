"""A small model of random weights, with more query heads than two key-value heads to go with them."""

import json
from pathlib import Path
from typing import Any

from mixed_requests import VOCAB

from vllm_obs.engine.model.source import resolve_model

RANDOM_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
"""Of its two key-value heads four shards have one each, so that two have the same."""


def random_model(path: Path) -> dict[str, Any]:
    """Write it there; how it is asked for."""
    (path / "config.json").write_text(json.dumps(RANDOM_MODEL))
    return {"model": str(path), "load_format": "dummy", "tokenizer": resolve_model(None).path}
