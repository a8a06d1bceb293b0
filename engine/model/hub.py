"""Fetching a model from the Hugging Face hub, or from its local cache."""

from pathlib import Path

from vllm_obs.engine.errors import ConfigError

_TEXT_FILES = ["*.json", "*.jinja", "vocab.txt"]
_CONNECT_SECONDS = 5.0


def download_model(model: str, needs_weights: bool) -> Path:
    """The local snapshot of a hub id, downloaded where missing. ConfigError in one line when it cannot be had."""
    from huggingface_hub import snapshot_download  # slow to import, and local models need none of it

    patterns = [*_TEXT_FILES, "*.safetensors"] if needs_weights else _TEXT_FILES
    try:
        return Path(snapshot_download(model, allow_patterns=patterns, etag_timeout=_CONNECT_SECONDS))
    except Exception as error:  # the library raises its own, its HTTP client's and the system's errors
        raise ConfigError(_explain(model, error)) from None


def _explain(model: str, error: Exception) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"no such model: {model} is no local file or directory and the hub has not given it: {first_line}"
