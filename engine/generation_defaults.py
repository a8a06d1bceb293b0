"""How a request is sampled that does not say: the model's own advice, and what the operator makes of it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_obs.engine.config import GenerationConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.safetensors_header import read_json

GENERATION_FILE = "generation_config.json"
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The fields that are a request's own where it has them; max_new_tokens bounds them all."""
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_WHOLE = ("top_k", "max_new_tokens")
_BOUNDS = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 2.0),
    "top_k": (-1, 1 << 31),
    "max_new_tokens": (1, 1 << 31),
}


def generation_config(choice: str, model_path: str, override: Mapping[str, Any]) -> GenerationConfig:
    """The defaults that `--generation-config` names, then the override's. ConfigError for values out of range.

    `auto` reads generation_config.json beside the model, if there is one; `vllm` reads none; any other is a
    directory with one. Of a file only the fields that are known count; an override may hold no other.
    """
    for name in override:
        if name not in _BOUNDS:
            known = ", ".join(_BOUNDS)
            raise ConfigError(f"--override-generation-config: {name[:64]} is not supported; supported: {known}")
    chosen = {**_from_file(choice, model_path), **override}
    where = f"--override-generation-config or {GENERATION_FILE}"
    return GenerationConfig(**{name: _checked(name, value, where) for name, value in chosen.items()})


def _from_file(choice: str, model_path: str) -> dict[str, Any]:
    if choice == "vllm":
        return {}
    file = Path(model_path if choice == "auto" else choice).expanduser() / GENERATION_FILE
    if not file.is_file():
        if choice == "auto":
            return {}
        raise ConfigError(f"--generation-config: there is no {file}")
    values = read_json(file)
    return {name: values[name] for name in _BOUNDS if values.get(name) is not None}


def _checked(name: str, value: Any, where: str) -> Any:
    least, most = _BOUNDS[name]
    is_right = type(value) is int or (name in _NUMBERS and type(value) is float and math.isfinite(value))
    if not is_right or not least <= value <= most:
        kind = "a number" if name in _NUMBERS else "a whole number"
        raise ConfigError(f"{where}: {name} {value!r:.64} is not {kind} between {least:g} and {most:g}")
    return value
