"""From a Hugging Face config.json to the shape of an encoder of the BERT family, without torch."""

from typing import Any

from vllm_obs.engine.config import ENCODERS, ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.hf_architecture import ConfigValues


def is_bert(values: dict[str, Any]) -> bool:
    """Whether a parsed config.json names an encoder of this family."""
    return _class_name(values) is not None


def bert_architecture(values: dict[str, Any], place: str) -> ModelArchitecture:
    """The architecture that `values` describes. ConfigError where it is not one of ours."""
    config = ConfigValues(values, place)
    name = _class_name(values)
    assert name is not None, "asked before"
    _refuse_unsupported(config)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise ConfigError(f"{place}: a width of {hidden_size} cannot be split evenly into {num_heads} heads")
    offset = 0 if name == "BertModel" else _padding_id(config) + 1
    num_rows = config.integer("max_position_embeddings")
    if num_rows <= offset:
        raise ConfigError(f"{place}: max_position_embeddings is {num_rows}; the first {offset} are never used")
    return ModelArchitecture(
        name=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        rms_norm_eps=config.number("layer_norm_eps", 1e-12),
        rope_theta=10000.0,
        max_position_embeddings=num_rows - offset,
        tie_word_embeddings=True,
        attention_bias=True,
        source_dtype="float32",
        num_token_types=config.integer("type_vocab_size", 2),
        position_offset=offset,
    )


def _class_name(values: dict[str, Any]) -> str | None:
    names = values.get("architectures")
    return next((str(name) for name in names if name in ENCODERS), None) if isinstance(names, list) else None


def _padding_id(config: ConfigValues) -> int:
    """RoBERTa counts positions from behind the padding token's id."""
    padding = config.get("pad_token_id", 1)
    if type(padding) is not int or padding < 0:
        raise ConfigError(f"{config.place}: pad_token_id is {padding!r}, not a token id")
    return padding


def _refuse_unsupported(config: ConfigValues) -> None:
    for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if (found := config.get(key, only)) != only:
            raise ConfigError(f"{config.place}: {key} {found!r} is not supported; supported: {only}")
    if config.get("quantization_config"):
        raise ConfigError(f"{config.place}: quantized safetensors (quantization_config) are not supported")
