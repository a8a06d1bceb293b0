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
        return next(iter(live_urls()), DEFAULT_URL)
    try:
        parts = urlsplit(asked)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address and not is_unix(asked):
        raise ConfigError(f"--url {asked:.64} is not an http://, https:// or unix:/ address")
    return with_version(asked)


def live_urls() -> list[str]:
    """The addresses of the servers that live on this machine, of the newest run first."""
    return [with_version(found) for found in map(_address_of, runs_newest_first()) if found]


def choice_note(url: str) -> str:
    """Which server is asked where nobody named one; empty where it is the only one, at the usual address."""
    others = [each for each in live_urls() if each != url]
    if others:
        return (
            f"asking {url}, the newest of {len(others) + 1} servers; --url names another: {', '.join(others[:4])}"
        )
    return f"asking {url}" if url != DEFAULT_URL else ""


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
