"""Reads a Chrome trace as Perfetto would, and holds it to the format."""

import gzip
import json
from pathlib import Path
from typing import Any

NUMBERS = (int, float)


def read_trace(path: Path) -> dict[str, Any]:
    """The trace of a file, packed or not."""
    content = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return trace


def check_trace(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Its complete events, after every event was checked: fields, names of tracks, and nesting on each track."""
    named: set[tuple[str, int, int]] = set()
    slices: list[dict[str, Any]] = []
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], NUMBERS)
        if event["ph"] == "M":
            assert isinstance(event["args"]["name"], str)
            named.add((event["name"], event["pid"], event["tid"]))
        else:
            assert event["ph"] == "X"
            assert event["dur"] >= 0
            slices.append(event)
    for event in slices:
        assert ("thread_name", event["pid"], event["tid"]) in named
        assert any(kind == "process_name" and pid == event["pid"] for kind, pid, _ in named)
    _check_nesting(slices)
    return slices


def _check_nesting(slices: list[dict[str, Any]]) -> None:
    """Two of one track are apart, or one is within the other."""
    open_until: dict[tuple[int, int], list[int]] = {}
    for begun, ended, track in sorted((_span(event) for event in slices), key=lambda span: (span[0], -span[1])):
        stack = open_until.setdefault(track, [])
        while stack and stack[-1] <= begun:
            stack.pop()
        assert not stack or ended <= stack[-1]
        stack.append(ended)


def _span(event: dict[str, Any]) -> tuple[int, int, tuple[int, int]]:
    begun = round(event["ts"] * 1000)
    return begun, begun + round(event["dur"] * 1000), (event["pid"], event["tid"])
