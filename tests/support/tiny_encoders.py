"""Tiny random encoders of the BERT family with a vocabulary of letters, as directories on disk."""

import json
from pathlib import Path
from typing import Any

import torch
from tiny_models import write_model

from vllm_obs.engine.model.bert_architecture import bert_architecture
from vllm_obs.engine.model.bert_tensors import bert_tensors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sea", "##s", "un", "##able", ",", "."]
WORDS += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
TINY_BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
TINY_ROBERTA = TINY_BERT | {"architectures": ["XLMRobertaModel"], "type_vocab_size": 1, "pad_token_id": 1}


def random_encoder(values: dict[str, Any], prefix: str = "", seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors for a config.json, large enough for attention and norms to matter, their names after a prefix."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in bert_tensors(bert_architecture(values, "test")):
        tensor = torch.randn(shape, generator=generator)
        is_scale = name.endswith("LayerNorm.weight")
        tensors[prefix + name] = 1 + 0.3 * tensor if is_scale else 2 * tensor / shape[-1] ** 0.5
    return tensors


def write_encoder(
    directory: Path,
    values: dict[str, Any] = TINY_BERT,
    pooling: str = "pooling_mode_mean_tokens",
    tensors: dict[str, torch.Tensor] | None = None,
) -> Path:
    """The model with its vocab.txt and the modules of sentence-transformers: that pooling, then length one."""
    write_model(directory, values, random_encoder(values) if tensors is None else tensors)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 48}')
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True}))
    return directory
