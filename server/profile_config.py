"""ProfilerConfig: what --profiler-config and VLLM_TORCH_PROFILER_DIR open and set, under vLLM's names."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.profile_order import MAX_DELAY_STEPS, MAX_STEPS

DIRECTORY_VARIABLE = "VLLM_TORCH_PROFILER_DIR"
DEFAULT_STEPS = 200
DEFAULT_SECONDS = 60.0
"""The bounds of a profile that is given none: it must not grow for as long as somebody forgets it."""
MAX_CONFIG_CHARS = 16_384


@dataclass(frozen=True)
class ProfilerConfig:
    """How profiles are taken. `is_open` lets the API's port take the orders; the inspector always does.

    `directory` is empty for the run's own. `max_steps` bounds each profile, `delay_steps` go by before.
    `options` are of profile_order.OPTIONS.
    """

    is_open: bool = False
    directory: str = ""
    delay_steps: int = 0
    max_steps: int = DEFAULT_STEPS
    options: tuple[str, ...] = ()


CLOSED = ProfilerConfig()


class _Field(NamedTuple):
    """One of vLLM's fields: what it may be. `option` is what it switches on here, empty where it has no effect."""

    check: Callable[[Any], bool]
    says: str
    option: str = ""


def _is_boolean(value: Any) -> bool:
    return type(value) is bool


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_DELAY_STEPS


_COUNT = _Field(_is_count, f"must be a whole number from 0 to {MAX_DELAY_STEPS}")
_NO_EFFECT = _Field(_is_boolean, "must be true or false")

FIELDS: dict[str, _Field] = {
    "profiler": _Field(lambda value: value in (None, "torch"), 'must be "torch"; no other profiler is built in'),
    "torch_profiler_dir": _Field(lambda value: isinstance(value, str), "must be a string"),
    "torch_profiler_with_stack": _NO_EFFECT._replace(option="stack"),
    "torch_profiler_with_flops": _NO_EFFECT._replace(option="flops"),
    "torch_profiler_record_shapes": _NO_EFFECT._replace(option="shapes"),
    "torch_profiler_with_memory": _NO_EFFECT._replace(option="memory"),
    "torch_profiler_use_gzip": _NO_EFFECT,
    "torch_profiler_dump_cuda_time_total": _NO_EFFECT,
    "ignore_frontend": _NO_EFFECT,
    "delay_iterations": _COUNT,
    "max_iterations": _COUNT,
    "wait_iterations": _COUNT,
    "warmup_iterations": _COUNT,
    "active_iterations": _COUNT,
}

VARIABLES = {
    "VLLM_TORCH_PROFILER_WITH_STACK": "stack",
    "VLLM_TORCH_PROFILER_WITH_FLOPS": "flops",
    "VLLM_TORCH_PROFILER_RECORD_SHAPES": "shapes",
    "VLLM_TORCH_PROFILER_WITH_PROFILE_MEMORY": "memory",
}
"""What vLLM reads beside DIRECTORY_VARIABLE, when set to 1."""


def read_profiler_config(text: str) -> ProfilerConfig:
    """The configuration in the flag's JSON. ValueError says in plain words what is wrong with it."""
    values = _read(text)
    for name, value in values.items():
        field = FIELDS.get(name)
        if field is None:
            raise ValueError(f"there is no field {name[:64]!r}; known: {', '.join(FIELDS)}")
        if not field.check(value):
            raise ValueError(f"{name} {field.says}")
    directory = values.get("torch_profiler_dir", "")
    options = [field.option for name, field in FIELDS.items() if field.option and values.get(name)]
    if values.get("torch_profiler_use_gzip") is False:
        options.append("uncompressed")
    return ProfilerConfig(
        bool(values.get("profiler") or directory),
        _directory(directory) if directory else "",
        sum(values.get(name, 0) for name in ("delay_iterations", "wait_iterations", "warmup_iterations")),
        _max_steps(values),
        tuple(options),
    )


def profiler_environment(environ: Mapping[str, str]) -> ProfilerConfig:
    """The configuration that the environment asks for; closed where it asks for none. Raises ConfigError."""
    directory = environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return CLOSED
    options = tuple(option for name, option in VARIABLES.items() if environ.get(name, "0") != "0")
    try:
        return ProfilerConfig(True, _directory(directory), options=options)
    except ValueError as error:
        raise ConfigError(f"{DIRECTORY_VARIABLE}: {error}") from None


def _read(text: str) -> dict[str, Any]:
    if len(text) > MAX_CONFIG_CHARS:
        raise ValueError(f"it has {len(text)} characters; at most {MAX_CONFIG_CHARS} are allowed")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError('it must be a JSON object such as {"profiler": "torch"}')
    return values


def _max_steps(values: dict[str, Any]) -> int:
    """0 is no bound in vLLM and the default one here; a schedule's active iterations are a bound as well."""
    has_schedule = values.get("wait_iterations") or values.get("warmup_iterations")
    scheduled = values.get("active_iterations", 5) if has_schedule else values.get("active_iterations", 0)
    asked = [count for count in (values.get("max_iterations", 0), scheduled) if count]
    return min([*asked, MAX_STEPS]) if asked else DEFAULT_STEPS


def _directory(text: str) -> str:
    if "://" in text or not text.isprintable():
        raise ValueError(f"{text[:64]!r} is no directory of this machine")
    path = Path(text).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise ValueError(f"{text[:64]!r} is not a directory")
    return str(path)
