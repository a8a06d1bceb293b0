"""Finds the run that is alive by its run directory, and asks its inspector API over HTTP."""

import http.client
import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.run_dir import base_directory
from vllm_obs.telemetry.observer_address import INSPECT_FILE

TIMEOUT_SECONDS = 10.0
MAX_REPLY_BYTES = 64 << 20


class InspectorError(Exception):
    """The inspector API cannot be reached, or refused what was asked."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Inspector(NamedTuple):
    """Where one inspector API is."""

    url: str

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at `path`. Raises InspectorError."""
        given = {name: value for name, value in query.items() if value is not None}
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", f"{path}?{urlencode(given)}" if given else path)
            reply = connection.getresponse()
            body = reply.read(MAX_REPLY_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise InspectorError(f"the inspector at {self.url} does not answer: {error or type(error)}") from None
        finally:
            connection.close()
        return _content(body, reply.status, self.url)


def _content(body: bytes, status: int, url: str) -> Any:
    try:
        content = json.loads(body)
    except ValueError:
        raise InspectorError(f"what answers at {url} is no inspector of vllm-obs (status {status})") from None
    if status != 200:
        error = content.get("error", {}) if isinstance(content, dict) else {}
        raise InspectorError(str(error.get("message", f"status {status}")), status)
    return content


def find_inspector(url: str | None = None) -> Inspector:
    """The inspector at `url`, or that of the newest run that is alive. ConfigError or InspectorError if none."""
    if url:
        if urlsplit(url).scheme != "http" or not urlsplit(url).hostname:
            raise ConfigError(f"--url {url:.64} is not an http:// address")
        return Inspector(url.rstrip("/"))
    for run in runs_newest_first():
        inspector = _inspector_of(run)
        if inspector is not None:
            return inspector
    raise InspectorError(f"no live run is known under {base_directory()}; give its inspector's address with --url")


def runs_newest_first() -> list[Path]:
    """The directories of all runs under `base_directory()`, alive or not."""
    base = base_directory()
    if not base.is_dir():
        return []
    runs = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(runs, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _inspector_of(run: Path) -> Inspector | None:
    """The run's inspector if its file is there and it answers for that very run."""
    try:
        found = json.loads((run / INSPECT_FILE).read_bytes())
        inspector = Inspector(str(found["address"]))
        version = inspector.get("/inspect/version")
    except (OSError, ValueError, KeyError, TypeError, InspectorError):
        return None
    return inspector if version.get("run") == run.name else None
