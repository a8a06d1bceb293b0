"""The start of a run as a waterfall: each process's phases, what the run hung on, and what nothing explains."""

from collections.abc import Sequence
from typing import Any

from vllm_obs.telemetry.process_table import ProcessTable
from vllm_obs.telemetry.records import ProcessPhase
from vllm_obs.telemetry.startup_leaves import Leaf, Start, first_starts, is_around, is_front, start_of
from vllm_obs.telemetry.startup_path import Segment, critical_path
from vllm_obs.telemetry.startup_words import hints, sentence

NS = 1e9

Row = dict[str, Any]


def startup_view(table: ProcessTable, now: int) -> Row:
    """How the run started, and every process of it. Moments are monotonic ns, shares 0 to 1.

    `seconds` of a process are from its spawn to READY. `run` is about the first start, from the root process's
    beginning until it let requests in; `accounted` is the share of that for which some process's phase on the
    critical path is known. Processes started once it was ready (again) have `is_later`.
    """
    found = (start_of(facts, now) for facts in table.all())
    starts = sorted((start for start in found if start is not None), key=lambda start: start.begun_at)
    first = first_starts(starts)
    path = critical_path(first)
    return {
        "run": _run(first, path),
        "says": sentence(first, path),
        "hints": hints(first, path),
        "processes": [_process(start, is_later=start not in first) for start in starts],
    }


def _run(starts: Sequence[Start], path: Sequence[Segment]) -> Row:
    begun_at = path[0].begun_at if path else None
    ended_at = path[-1].ended_at if path else None
    total = ended_at - begun_at if begun_at is not None and ended_at is not None else 0
    unaccounted = sum(segment.length_ns for segment in path if not segment.phase)
    fronts = [start for start in starts if is_front(start.role)]
    is_ready = bool(fronts) and all(start.is_ready for start in fronts)
    return {
        "begun_at": begun_at,
        "ready_at": ended_at if is_ready else None,
        "seconds": total / NS,
        "is_ready": is_ready,
        "accounted": 1 - unaccounted / total if total else None,
        "unaccounted_seconds": unaccounted / NS,
        "critical_path": [_segment(segment, total) for segment in path],
    }


def _segment(segment: Segment, total_ns: int) -> Row:
    return {
        "role": segment.role,
        "pid": segment.pid,
        "phase": segment.phase or "unaccounted",
        "begun_at": segment.begun_at,
        "ended_at": segment.ended_at,
        "seconds": segment.length_ns / NS,
        "share": segment.length_ns / total_ns if total_ns else 0.0,
    }


def _process(start: Start, is_later: bool) -> Row:
    facts = start.facts
    return {
        "role": facts.role,
        "pid": facts.pid,
        "state": facts.state,
        "is_later": is_later,
        "started_at": facts.started_at or None,
        "begun_at": start.begun_at,
        "ready_at": facts.ready_at or None,
        "seconds": start.length_ns / NS,
        "accounted": start.accounted,
        "unaccounted_seconds": sum(gap.length_ns for gap in start.gaps) / NS,
        "gaps": [_gap(gap) for gap in start.gaps],
        "phases": [_phase(phase, start) for phase in sorted(facts.phases, key=_outer_first)],
    }


def _outer_first(phase: ProcessPhase) -> tuple[int, int]:
    return phase.begun_at, -phase.ended_at


def _gap(gap: Leaf) -> Row:
    return {"begun_at": gap.begun_at, "ended_at": gap.ended_at, "seconds": gap.length_ns / NS}


def _phase(phase: ProcessPhase, start: Start) -> Row:
    """`depth` 0 is an outermost phase; `own_seconds` are without the phases within it."""
    length = phase.ended_at - phase.begun_at
    own = sum(
        leaf.length_ns
        for leaf in start.leaves
        if leaf.phase == phase.phase and phase.begun_at <= leaf.begun_at and leaf.ended_at <= phase.ended_at
    )
    return {
        "phase": phase.phase,
        "depth": sum(is_around(other, phase) for other in start.facts.phases),
        "begun_at": phase.begun_at,
        "ended_at": phase.ended_at,
        "seconds": length / NS,
        "own_seconds": own / NS,
        "share": length / start.length_ns if start.length_ns else 0.0,
        "cpu_seconds": phase.cpu_seconds,
        "num_read_bytes": phase.num_read_bytes,
    }
