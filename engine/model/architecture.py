"""What must hold between the numbers of an architecture, wherever they came from."""

import math
from typing import Any

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError

MAX_SIZE = 1 << 30
"""Of anything that is counted in a model."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


def is_positive(value: Any) -> bool:
    """Whether it is a number above zero, and a finite one: JSON as Python reads it has others."""
    return type(value) in (int, float) and 0 < value < math.inf


def check_architecture(architecture: ModelArchitecture, place: str) -> None:
    """ConfigError, beginning with `place`, where heads, sizes or rope scaling do not fit together."""
    for name in _SIZES:
        if (size := getattr(architecture, name)) > MAX_SIZE:
            raise ConfigError(f"{place}: {name} is {size!r:.40}; at most {MAX_SIZE} may be")
    heads, kv_heads, head_dim = architecture.num_heads, architecture.num_kv_heads, architecture.head_dim
    if heads % kv_heads:
        raise ConfigError(f"{place}: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if head_dim % 2 or head_dim < 4:
        raise ConfigError(
            f"{place}: head size {head_dim} is not supported; rotary embedding needs pairs, 4 at least"
        )
    _check_rope_scaling(architecture, place)


_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _check_rope_scaling(architecture: ModelArchitecture, place: str) -> None:
    scaling = architecture.rope_scaling or {}
    kind = str(scaling.get("rope_type"))
    for key in _NEEDED.get(kind, ()):
        value = scaling.get(key)
        if not is_positive(value):
            raise ConfigError(f"{place}: rope scaling {kind} needs a positive {key}, not {value!r:.64}")
    factors = scaling.get("factors", [1.0] * (architecture.head_dim // 2))
    if len(factors) != architecture.head_dim // 2 or min(factors) <= 0:
        raise ConfigError(
            f"{place}: {len(factors)} rope frequency factors, but a head of {architecture.head_dim} has "
            f"{architecture.head_dim // 2} frequencies, each needing a positive one"
        )
