"""From GGUF metadata to the shape of a decoder, without torch."""

from typing import Any

import numpy as np

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.gguf_file import GGUFFile

_CLASS_NAMES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_FREQUENCY_FACTORS = "rope_freqs.weight"


class _Metadata:
    """The metadata of one file, asked with the architecture's own prefix."""

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self.file = file
        self.prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.prefix}.{key}", default)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, or ConfigError."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{self.file.path}: {self.prefix}.{key} is {value!r}, not a positive number")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer, or ConfigError."""
        value = self.number(key, default)
        if not isinstance(value, int):
            raise ConfigError(f"{self.file.path}: {self.prefix}.{key} is {value!r}, not an integer")
        return value


def gguf_architecture(file: GGUFFile) -> ModelArchitecture:
    """The architecture a GGUF file describes. ConfigError where it is none of ours or contradicts itself."""
    prefix = file.metadata.get("general.architecture")
    if not isinstance(prefix, str) or prefix not in _CLASS_NAMES:
        raise ConfigError(
            f"{file.path}: architecture {prefix!r} is not supported; supported: {', '.join(_CLASS_NAMES)}"
        )
    keys = _Metadata(file, prefix)
    if keys.get("expert_count"):
        raise ConfigError(f"{file.path}: mixture-of-experts models are not supported")
    num_heads = keys.integer("attention.head_count")
    hidden_size = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    _check_head_dim(keys, head_dim)
    return ModelArchitecture(
        name=_CLASS_NAMES[prefix],
        vocab_size=_vocab_size(keys),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=float(keys.number("rope.freq_base", 10000.0)),
        max_position_embeddings=keys.integer("context_length"),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        sliding_window=keys.get("attention.sliding_window") or None,
        rope_scaling=_rope_scaling(keys),
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_stop_token_ids(file.metadata),
        source_dtype=_source_dtype(file),
    )


def gguf_chat_template(file: GGUFFile) -> str | None:
    """The jinja template in the metadata, if any."""
    template = file.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def _check_head_dim(keys: _Metadata, head_dim: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        found = keys.get(key, head_dim)
        if found != head_dim:
            raise ConfigError(
                f"{keys.file.path}: {keys.prefix}.{key} is {found}; only the head size, {head_dim}, is supported"
            )


def _vocab_size(keys: _Metadata) -> int:
    """Rows of the embedding, which the token list and the declared size must equal."""
    file = keys.file
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor token_embd.weight is missing")
    rows = embedding.shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    for what, size in (
        ("its token list", len(tokens) if isinstance(tokens, list) else rows),
        (f"{keys.prefix}.vocab_size", keys.get("vocab_size", rows)),
    ):
        if size != rows:
            raise ConfigError(f"{file.path}: the embedding has {rows} rows, but {what} says {size} tokens")
    return rows


def _rope_scaling(keys: _Metadata) -> dict[str, Any] | None:
    """GGUF's scaling keys in Hugging Face's words; frequency factors (Llama 3) as our own `factors` type."""
    factors = keys.file.tensors.get(_FREQUENCY_FACTORS)
    if factors is not None and factors.block_type.name == "F32":
        values = keys.file.raw(_FREQUENCY_FACTORS).view(np.float32)
        return {"rope_type": "factors", "factors": values.ravel().tolist()}
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ConfigError(f"{keys.file.path}: rope scaling {kind!r} is not supported; supported: linear, yarn")
    scaling = {"rope_type": kind, "factor": float(keys.number("rope.scaling.factor"))}
    if original := keys.get("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = original
    return scaling


def _stop_token_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    found = (metadata.get(f"tokenizer.ggml.{key}") for key in _STOP_KEYS)
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))


def _source_dtype(file: GGUFFile) -> str:
    """The numbers the matrices were stored in; quantised ones count as bfloat16."""
    matrices = {tensor.block_type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if matrices == {"F32"}:
        return "float32"
    return "float16" if matrices == {"F16"} else "bfloat16"
