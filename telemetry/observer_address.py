"""The file in a run directory that says where the run's inspector API is."""

import contextlib
import os
from pathlib import Path

import orjson

INSPECT_FILE = "inspect.json"


def write_address(run_dir: Path, address: str, api_address: str) -> None:
    """Say where the inspector is, readable by this user alone. Raises OSError."""
    content = {"address": address, "api_address": api_address, "pid": os.getpid(), "run": run_dir.name}
    partial = run_dir / f".{INSPECT_FILE}.{os.getpid()}"
    try:
        partial_fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(partial_fd, "wb") as file:
            file.write(orjson.dumps(content))
        partial.replace(run_dir / INSPECT_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def remove_address(run_dir: Path) -> None:
    """Take it away again, unless another Observer has written its own since."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        path = run_dir / INSPECT_FILE
        if orjson.loads(path.read_bytes())["pid"] == os.getpid():
            path.unlink()
