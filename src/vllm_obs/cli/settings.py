"""Where settings come from besides the command line: VLLM_OBS_… variables and a YAML file."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vllm_obs.cli.parser import nearest_option
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import Flag, json_strings

MAX_FILE_BYTES = 1 << 20


def environment_name(flag: Flag) -> str:
    """The variable that sets a flag."""
    return "VLLM_OBS_" + flag.name.upper()


def read_environment(flags: Iterable[Flag], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The flags set by VLLM_OBS_… variables; several values are separated by commas.

    tcp://… is left alone: Kubernetes puts it into VLLM_OBS_PORT for a service that is named vllm-obs.
    """
    values: dict[str, Any] = {}
    for flag in flags:
        name = environment_name(flag)
        text = environ.get(name, "")
        if text and not text.startswith("tcp://"):
            values[flag.name] = _from_environment(flag, name, text)
    return values


def _from_environment(flag: Flag, name: str, text: str) -> Any:
    try:
        if flag.is_boolean:
            return _boolean(text)
        return [flag.read(part) for part in text.split(",") if part] if flag.kind == "values" else flag.read(text)
    except ValueError as error:
        raise ConfigError(f"environment variable {name}: {error}") from error


def _boolean(text: str) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if text.lower() not in words:
        raise ValueError(f"{text[:64]!r} is not 1, 0, true or false")
    return words[text.lower()]


def read_config_file(path: str, flags: Iterable[Flag]) -> dict[str, Any]:
    """The settings of a YAML file whose keys are flag names, with - or _. An empty value counts as not given."""
    by_name = {flag.name: flag for flag in flags}
    values: dict[str, Any] = {}
    for key, value in _load_mapping(path).items():
        name = str(key).strip().removeprefix("--").replace("-", "_")
        if name not in by_name:
            near = nearest_option(name, by_name)
            raise ConfigError(f"{path}: unknown key {key!s:.64}" + (f" (nearest: {near})" if near else ""))
        if name in values:
            raise ConfigError(f"{path}: {name} is there twice")
        if value is not None:
            values[name] = _from_yaml(by_name[name], f"{path}: {key}", value)
    return values


def _load_mapping(path: str) -> dict[Any, Any]:
    import yaml  # here: only a start with --config pays for it

    try:
        size = Path(path).stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"--config {path} has {size} bytes; at most {MAX_FILE_BYTES} are allowed")
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path} is not UTF-8 text") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {path} is not YAML: {error}") from error
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"--config {path} holds a {type(content).__name__}, not flags with their values")
    return content or {}


def _from_yaml(flag: Flag, where: str, value: Any) -> Any:
    if flag.is_boolean:
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: {value!s:.64} is not true or false")
        return value
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts):
        raise ConfigError(f"{where}: {value!s:.64} is not a plain value")
    try:
        if flag.parse is json_strings:
            return tuple(str(part) for part in parts)
        read = [flag.read(str(part)) for part in parts]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    if flag.kind != "values" and len(read) > 1:
        raise ConfigError(f"{where}: one value is allowed, not {len(read)}")
    return read if flag.kind == "values" else read[0]
