"""The incident of a dead run that nobody filed, put together from the rings that it left."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.telemetry.death_watch import End, SeenRing, rings_of
from vllm_obs.telemetry.incident_culprit import judged
from vllm_obs.telemetry.incident_finding import FailedStep, Finding, finding_of_death, finding_of_steps
from vllm_obs.telemetry.incident_mending import keys_of
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.incident_story import Scene, Story, tell
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.record_codec import KINDS, RecordDecoder, kind_number
from vllm_obs.telemetry.records import IncidentFiled, ProcessExited, Record, StepFailed
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.ring_tail import RingTail, source_of
from vllm_obs.telemetry.view import Source

MAX_TELLING = 1024
"""Records of ends, failed steps and incidents, of each ring."""
_TELLING = frozenset({KINDS[ProcessExited], KINDS[StepFailed], KINDS[IncidentFiled]})


class Unfiled(NamedTuple):
    """What a run that is dead came to, as far as its rings tell."""

    run_dir: Path
    finding: Finding
    rings: list[SeenRing]


def unfiled_incident(run_dir: Path) -> Unfiled | None:
    """The incident of a dead run if nobody has filed it; None where it ended in order, as far as is known.

    Reads all rings once, without decoding what does not matter here.
    """
    rings = list(rings_of(run_dir))
    known = {key for document in IncidentShelf(run_dir).documents() for key in keys_of(document)}
    ends: dict[tuple[str, int], End] = {}
    for ring in rings:
        if not ring.is_alive and not ring.header.closed_at and not ring.header.host:
            end = End(ring.header.role, ring.header.pid, None, _last_sign(ring.header))
            ends[end.key] = end
    failed: list[FailedStep] = []
    for source, record in _telling_records(run_dir):
        if isinstance(record, ProcessExited):
            end = End(record.role, record.pid, record.exit_code, record.exited_at, True, record.was_told)
            ends[end.key] = end
        elif isinstance(record, StepFailed):
            failed.append(FailedStep(source, record))
    judgement = judged(end for end in ends.values() if f"end {end.role} {end.pid}" not in known)
    if judgement is not None:
        pid = judgement.first.pid
        own = [step for step in failed[-1:] if step.source.pid == pid]
        return Unfiled(run_dir, finding_of_death(judgement, own, run_dir, rings), rings)
    new = [step for step in failed if not known.intersection(finding_of_steps([step]).keys)]
    return Unfiled(run_dir, finding_of_steps(new), rings) if new and not known else None


def tell_unfiled(unfiled: Unfiled) -> dict[str, Any]:
    """Its story, in the shape in which `read_incident` gives one that was filed."""
    run_dir, finding, rings = unfiled
    observer = Observer(run_dir.name, clock=None, wall_offset=wall_offset_of(rings))
    observer.tail = RingTail(run_dir)
    try:
        while not observer.drain_slice():
            continue
        finding = _dated(finding, observer.cost.newest_moment)
        story = tell(finding, Scene(observer, run_dir, rings))
    finally:
        observer.close()
    story.document["files"] = []
    return _as_read(story, run_dir)


def unwritten_incidents(run_dir: Path) -> list[dict[str, Any]]:
    """Incidents that an Observer saw and has had no room to write down, oldest first; told in a sentence each."""
    told: dict[str, IncidentFiled] = {}
    for _, record in _telling_records(run_dir):
        if isinstance(record, IncidentFiled):
            told[record.incident] = record
    unwritten = sorted((each for each in told.values() if not each.filed_at), key=lambda each: each.happened_at)
    offset = wall_offset_of(list(rings_of(run_dir))) if unwritten else 0
    return [_unwritten(each, run_dir, offset) for each in unwritten]


def _unwritten(filed: IncidentFiled, run_dir: Path, wall_offset: int) -> dict[str, Any]:
    document = {
        "name": filed.incident,
        "run": run_dir.name,
        "cause": filed.cause,
        "says": filed.says,
        "happened": {"monotonic_at": filed.happened_at, "wall_at": filed.happened_at + wall_offset},
        "culprit": {"role": filed.role, "pid": filed.pid},
        "timeline": [],
        "requests": {"num_open": 0, "by_stage": {}},
        "versions": {},
        "files": [],
        "keys": [],
        "is_unwritten": True,
    }
    parts: dict[str, Any] = {"steps": [], "open_requests": [], "processes": [], "stacks": {}, "logs": {}}
    return {"incident": document, "folder": str(run_dir), **parts}


def wall_offset_of(rings: list[SeenRing]) -> int:
    """What turns a moment of the run into wall time (ns)."""
    clocks = [(ring.header.started_at, ring.header.wall_at) for ring in rings if not ring.header.host]
    started_at, wall_at = min(clocks, default=(0, 0))
    return wall_at - started_at


def _dated(finding: Finding, newest_at: int) -> Finding:
    """Where nobody saw the end, it came after all that was recorded."""
    end = finding.end
    if end is None or end.is_recorded:
        return finding
    ended_at = max(end.ended_at, newest_at + 1)
    return replace(finding, happened_at=ended_at, end=end._replace(ended_at=ended_at))


def _as_read(story: Story, run_dir: Path) -> dict[str, Any]:
    files = {name: content.decode(errors="replace") for name, content in story.files.items()}

    def rows(name: str) -> list[Any]:
        return [json.loads(line) for line in files[name].splitlines()]

    def texts(folder: str, suffix: str) -> dict[str, str]:
        begin = f"{folder}/"
        return {name[len(begin) : -len(suffix)]: text for name, text in files.items() if name.startswith(begin)}

    return {
        "incident": story.document | {"is_reconstructed": True},
        "folder": str(run_dir),
        "steps": rows("steps.jsonl"),
        "open_requests": rows("requests.jsonl"),
        "processes": json.loads(files["processes.json"]),
        "stacks": texts("stacks", ".txt"),
        "logs": {title: text.splitlines() for title, text in texts("logs", ".log").items()},
    }


def _last_sign(header: RingHeader) -> int:
    return max(header.heartbeat_at, header.activity_at, header.started_at)


def _telling_records(run_dir: Path) -> Iterator[tuple[Source, Record]]:
    decoder = RecordDecoder()
    for path in sorted(run_dir.glob("*.ring")):
        try:
            with RingReader(path) as reader:
                source = source_of(reader.header())
                payloads = list(_telling_payloads(reader))
        except (RingError, OSError):
            continue
        for payload in payloads[-MAX_TELLING:]:
            record = decoder.decode(payload)
            if record is not None:
                yield source, record


def _telling_payloads(reader: RingReader) -> Iterator[bytes]:
    while frames := reader.read():
        for frame in frames:
            if kind_number(frame.payload) in _TELLING:
                yield frame.payload
