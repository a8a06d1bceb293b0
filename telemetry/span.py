"""Span: a finished piece of work with explicit moments, as the views make it and the OTLP encoder writes it."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from vllm_obs.telemetry.trace_ids import NO_SPAN, TraceParent

MAX_LINKS = 128
"""Links of one span; the limit that OpenTelemetry's SDKs have by default."""

Value = str | bool | int | float | Sequence[str] | None
"""An attribute's value; None leaves the attribute out."""

Attributes = Mapping[str, Value]

NO_ATTRIBUTES: Attributes = {}

_STEP_OF_CHILD_IDS = 0x9E3779B97F4A7C15
_ID_MASK = (1 << 64) - 1


class SpanKind(IntEnum):
    """What a span is to its caller, by OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2


class Process(NamedTuple):
    """The process that did a span's work: `role` names it in the run, `rank` is empty where it has none.

    `host` is empty where that is the Observer's own.
    """

    role: str
    pid: int
    rank: str = ""
    host: str = ""


class Span(NamedTuple):
    """One span. Moments are monotonic ns; `parent_id` is 0 for none; `error` is empty where all went well.

    `links` are encoded already: most are shared by many spans.
    """

    trace_id: int
    span_id: int
    parent_id: int
    name: str
    begun_at: int
    ended_at: int
    process: Process
    attributes: Attributes = NO_ATTRIBUTES
    kind: SpanKind = SpanKind.INTERNAL
    links: Sequence[bytes] = ()
    error: str = ""
    has_remote_parent: bool = False


def recorded_parent(text: str) -> TraceParent | None:
    """The trace parent that a record holds, or None where nothing is traced.

    Unlike a caller's header it may have a span id of zeros: a trace that begins here.
    """
    parts = text.split("-")
    if len(parts) != 4:
        return None
    try:
        trace_id, parent_id, flags = (int(part, 16) for part in parts[1:])
    except ValueError:
        return None
    return TraceParent(trace_id, parent_id or NO_SPAN, bool(flags & 1)) if trace_id else None


def child_id(parent_id: int, number: int) -> int:
    """The id of a span's child by its number (from 1), never 0."""
    return (parent_id + number * _STEP_OF_CHILD_IDS) & _ID_MASK or 1
