"""Copies a profile's files from the inspector into a directory."""

import http.client
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

TIMEOUT_SECONDS = 60.0


def check_writable(directory: Path) -> None:
    """Make the directory and see that files can be written there. Raises InspectorError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise InspectorError(f"--output {directory}: no files can be written there: {error.strerror}") from None


def download(inspector: Inspector, profile: dict[str, Any], directory: Path) -> Path:
    """Where the files of the profile now are: a directory of its name. Raises InspectorError."""
    target = directory / Path(profile["profile"]).name
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in profile["files"]:
            name = Path(file["name"]).name
            _copy(inspector, f"/inspect/profiles/{quote(profile['profile'])}/{quote(name)}", target / name)
    except (OSError, http.client.HTTPException) as error:
        raise InspectorError(f"the files cannot be copied to {target}: {error}") from None
    return target


def _copy(inspector: Inspector, path: str, target: Path) -> None:
    parts = urlsplit(inspector.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        if reply.status != 200:
            raise InspectorError(f"{path} was answered with status {reply.status}", reply.status)
        with target.open("wb") as file:
            shutil.copyfileobj(reply, file)
    finally:
        connection.close()
