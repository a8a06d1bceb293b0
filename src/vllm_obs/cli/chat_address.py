"""Where the server is that one talks to: as asked for, else the newest that lives on this machine."""

import json
from pathlib import Path
from urllib.parse import urlsplit

from vllm_obs.cli.live_run import is_alive, runs_newest_first
from vllm_obs.engine.errors import ConfigError
from vllm_obs.telemetry.observer_address import INSPECT_FILE

DEFAULT_URL = "http://127.0.0.1:8000/v1"
VERSION_PATH = "/v1"


def base_url(asked: str | None) -> str:
    """The address that routes follow (…/v1). ConfigError for one that is none."""
    if asked is None:
        found = next(filter(None, map(_address_of, runs_newest_first())), None)
        return DEFAULT_URL if found is None else with_version(found)
    try:
        parts = urlsplit(asked)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address and not is_unix(asked):
        raise ConfigError(f"--url {asked:.64} is not an http://, https:// or unix:/ address")
    return with_version(asked)


def is_unix(url: str) -> bool:
    """Whether it is the path of a Unix socket, as servers print it: unix:/path."""
    return url.startswith("unix:/")


def with_version(url: str) -> str:
    """The address with the version of the API at its end; a Unix socket's has none."""
    url = url.rstrip("/")
    return url if is_unix(url) or url.endswith(VERSION_PATH) else url + VERSION_PATH


def _address_of(run: Path) -> str:
    """The API's address of a run that lives; empty where it has none."""
    if not is_alive(run):
        return ""
    try:
        return str(json.loads((run / INSPECT_FILE).read_bytes())["api_address"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
