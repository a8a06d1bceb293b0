"""From a Hugging Face config.json to the shape of a decoder, without torch."""

from typing import Any

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.architecture import is_positive

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_DTYPES = ("float32", "bfloat16", "float16")


class ConfigValues:
    """The values of one config.json, with errors that name the file."""

    def __init__(self, values: dict[str, Any], place: str) -> None:
        self.values = values
        self.place = place

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, or ConfigError."""
        value: float = self.get(key, default)
        if not is_positive(value):
            raise ConfigError(f"{self.place}: {key} is {value!r:.64}, not a positive number")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer, or ConfigError."""
        value = self.number(key, default)
        if not isinstance(value, int):
            raise ConfigError(f"{self.place}: {key} is {value!r}, not an integer")
        return value


def hf_architecture(values: dict[str, Any], place: str) -> ModelArchitecture:
    """The architecture that `values` (a parsed config.json) describes. ConfigError where it is none of ours."""
    config = ConfigValues(values, place)
    name = _class_name(config)
    _refuse_unsupported(config)
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    num_layers = config.integer("num_hidden_layers")
    window, full_layers = _sliding_window(config, name, num_layers)
    theta, scaling = _rope(config)
    return ModelArchitecture(
        name=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim", hidden_size // num_heads),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        max_position_embeddings=config.integer("max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=name == "Qwen2ForCausalLM" or bool(config.get("attention_bias", False)),
        qk_norm=name == "Qwen3ForCausalLM",
        sliding_window=window,
        full_attention_layers=full_layers,
        rope_scaling=scaling,
        bos_token_id=_first_id(config.get("bos_token_id")),
        eos_token_ids=token_ids(config.get("eos_token_id")),
        source_dtype=_source_dtype(config),
    )


def token_ids(value: Any) -> tuple[int, ...]:
    """A token id, a list of them, or nothing, as a tuple."""
    values = value if isinstance(value, list) else [value]
    return tuple(token for token in values if isinstance(token, int) and not isinstance(token, bool))


def _first_id(value: Any) -> int | None:
    return next(iter(token_ids(value)), None)


def _class_name(config: ConfigValues) -> str:
    names = config.get("architectures", [])
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{config.place}: 'architectures' names no model class")
    for name in names:
        if name in SUPPORTED:
            return str(name)
    raise ConfigError(
        f"{config.place}: architecture {names[0]} is not supported; supported: {', '.join(SUPPORTED)}"
    )


def _refuse_unsupported(config: ConfigValues) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(f"{config.place}: hidden_act {activation!r} is not supported; supported: silu")
    if config.get("quantization_config"):
        raise ConfigError(f"{config.place}: quantized safetensors (quantization_config) are not supported")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{config.place}: partial_rotary_factor other than 1.0 is not supported")


def _sliding_window(config: ConfigValues, name: str, num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The window in tokens (None: none) and the layers that do not use it."""
    if name.startswith("Llama") or not config.get("sliding_window"):
        return None, ()
    if name.startswith("Qwen") and not config.get("use_sliding_window", False):
        return None, ()
    window = config.integer("sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        full = tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention")
    else:
        num_full = config.get("max_window_layers", num_layers) if name.startswith("Qwen") else 0
        full = tuple(range(min(int(num_full), num_layers)))
    return (None, ()) if len(full) == num_layers else (window, full)


def _rope(config: ConfigValues) -> tuple[float, dict[str, Any] | None]:
    """The base frequency and the scaling dictionary, from either generation of the key names."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ConfigError(f"{config.place}: rope_scaling is {scaling!r}, not an object")
    theta = scaling.get("rope_theta") or config.get("rope_theta", 10000.0)
    if not is_positive(theta):
        raise ConfigError(f"{config.place}: rope_theta is {theta!r:.64}, not a positive number")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ConfigError(
            f"{config.place}: rope scaling {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
    if kind == "default":
        return float(theta), None
    kept = {key: value for key, value in scaling.items() if key not in ("type", "rope_theta")}
    return float(theta), {**kept, "rope_type": kind}


def _source_dtype(config: ConfigValues) -> str:
    dtype = str(config.get("dtype") or config.get("torch_dtype", "bfloat16")).removeprefix("torch.")
    return dtype if dtype in _DTYPES else "bfloat16"
