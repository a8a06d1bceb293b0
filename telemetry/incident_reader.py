"""What a filed incident holds, read back from its folder; bounded."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.incident_shelf import MAX_FILE_BYTES, IncidentShelf

Rows = list[dict[str, Any]]

MAX_ROWS = 4096
_NAMES = 64


def read_incident(shelf: IncidentShelf, name: str) -> dict[str, Any] | None:
    """Its document with steps, requests, processes, stacks and logs; None where there is no such incident."""
    document = shelf.read(name)
    return {"incident": document, **read_parts(shelf, name)} if document is not None else None


def read_parts(shelf: IncidentShelf, name: str) -> dict[str, Any]:
    """All files of an incident but its document, empty where they cannot be read."""
    folder = shelf.path / name
    processes = _decoded(_text(folder / "processes.json"))
    return {
        "folder": str(folder),
        "steps": _rows(folder / "steps.jsonl"),
        "open_requests": _rows(folder / "requests.jsonl"),
        "processes": processes if isinstance(processes, list) else [],
        "stacks": _texts(folder / "stacks", ".txt"),
        "logs": {title: text.splitlines() for title, text in _texts(folder / "logs", ".log").items()},
    }


def _rows(path: Path) -> Rows:
    found = (_decoded(line) for line in islice(_text(path).splitlines(), MAX_ROWS))
    return [row for row in found if isinstance(row, dict)]


def _texts(folder: Path, suffix: str) -> dict[str, str]:
    paths = sorted(folder.glob(f"*{suffix}")) if folder.is_dir() else []
    return {path.stem: _text(path) for path in paths[:_NAMES]}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
