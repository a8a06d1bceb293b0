"""What a damaged incident folder still tells: each part checked by its shape, replaced where it has another."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import msgspec

from vllm_obs.telemetry.process_roles import FIRST_ENGINE

Document = dict[str, Any]

NS = 1_000_000_000


class _Moment(TypedDict):
    monotonic_at: int
    wall_at: int


class _Stall(TypedDict):
    engine: str
    rank: int
    activity: str
    step: int
    process_state: str
    stuck_at: int


class _Culprit(TypedDict):
    role: str
    pid: int
    stall: NotRequired[_Stall | None]


class _Event(TypedDict):
    at: int
    says: str


class _Requests(TypedDict):
    num_open: int
    by_stage: dict[str, int]


class _Verdict(TypedDict):
    says: NotRequired[str]


class _Step(TypedDict):
    engine: NotRequired[str]
    step: int
    schedule_begun_at: int
    updated_at: int | None
    num_requests: int
    num_tokens: int
    head_reason: str
    num_running: int
    num_waiting: int
    num_active_blocks: int
    num_cached_blocks: int
    num_free_blocks: int
    failed: str


class _Request(TypedDict):
    request_id: str
    stage: str
    reason: str
    in_stage_ns: int
    stage_ns: dict[str, int]
    age_ns: int
    num_prompt_tokens: int
    num_output_tokens: int


class _Memory(TypedDict):
    resident_bytes: NotRequired[int]


class _Process(TypedDict):
    role: str
    pid: int
    state: str
    activity: str
    activity_ns: int
    step: int | None
    exit_code: int | None
    memory: NotRequired[_Memory | None]


_PARTS: dict[str, tuple[Any, Any]] = {
    "name": (str, ""),
    "run": (str, ""),
    "cause": (str, "unknown"),
    "says": (str, "What happened cannot be read any more."),
    "happened": (_Moment, {"monotonic_at": 0, "wall_at": 0}),
    "culprit": (_Culprit, {"role": "unknown", "pid": 0}),
    "timeline": (list[_Event], []),
    "requests": (_Requests, {"num_open": 0, "by_stage": {}}),
    "versions": (dict[str, str], {}),
    "files": (list[str], []),
}
_OPTIONAL: dict[str, tuple[Any, Any]] = {
    "verdict": (_Verdict, {}),
    "keys": (list[str], []),
    "helps": (list[str], []),
}
_ROWS: dict[str, tuple[str, Any]] = {
    "steps": ("steps.jsonl", _Step),
    "open_requests": ("requests.jsonl", _Request),
    "processes": ("processes.json", _Process),
}


def is_whole(document: Any) -> bool:
    """Whether all parts of an incident's document have the shapes that they are read by."""
    return isinstance(document, Mapping) and not _damaged_parts(document)


def keys_of(document: Mapping[str, Any]) -> list[str]:
    """What an incident is about, as far as that can be read."""
    keys = document.get("keys")
    return list(keys) if keys and _fits(keys, list[str]) else []


def mended(document: Any, name: str, run: str) -> Document:
    """The document of the incident in the folder `name`; what cannot be read is replaced and told in `damaged`."""
    found = dict(document) if isinstance(document, Mapping) else {}
    damaged = _damaged_parts(found)
    if not damaged:
        return found
    defaults = {part: default for part, (_, default) in (_PARTS | _OPTIONAL).items()} | {"name": name, "run": run}
    defaults["happened"] = {"monotonic_at": 0, "wall_at": _wall_at(name)}
    whole = {part: value for part, value in found.items() if part not in damaged}
    return {**whole, **{part: defaults[part] for part in damaged}, "damaged": damaged}


def mended_content(content: Document, name: str, run: str) -> Document:
    """All of an incident, as `read_incident` gives it, with the rows that can be read."""
    document = mended(content["incident"], name, run)
    damaged = [f"{part} in incident.json" for part in document.get("damaged", ())]
    found = dict(content)
    for part, (file, shape) in _ROWS.items():
        found[part] = [row for row in content[part] if _fits(row, shape)]
        if num_lost := len(content[part]) - len(found[part]):
            damaged.append(f"{num_lost} of {len(content[part])} rows of {file}")
    # Of a version that told of one engine only.
    found["steps"] = [{"engine": FIRST_ENGINE, **row} for row in found["steps"]]
    return {**found, "incident": document, "damaged": damaged}


def _damaged_parts(document: Mapping[str, Any]) -> list[str]:
    damaged = [part for part, (shape, _) in _PARTS.items() if not _fits(document.get(part), shape)]
    optional = ((part, shape, document.get(part, default)) for part, (shape, default) in _OPTIONAL.items())
    return damaged + [part for part, shape, value in optional if not _fits(value, shape)]


def _fits(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


def _wall_at(name: str) -> int:
    """The moment in a folder's name (local time); 0 where there is none."""
    with contextlib.suppress(ValueError, OverflowError):
        return int(time.mktime(time.strptime(name[:15], "%Y%m%d-%H%M%S"))) * NS
    return 0
