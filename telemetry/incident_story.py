"""The story of an incident: the document that tells it and the files with its evidence, from a run's state."""

import json
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.death_traces import log_tail
from vllm_obs.telemetry.death_watch import End, SeenRing
from vllm_obs.telemetry.incident_finding import FailedStep, Finding, header_of
from vllm_obs.telemetry.incident_processes import process_rows, rank_in
from vllm_obs.telemetry.incident_recording import RECORDING, save_tails
from vllm_obs.telemetry.incident_rows import engines_of, open_requests, request_rows, state_with_steps, step_rows
from vllm_obs.telemetry.incident_shelf import DOCUMENT, IncidentShelf
from vllm_obs.telemetry.incident_stall import helps_with
from vllm_obs.telemetry.incident_timeline import timeline
from vllm_obs.telemetry.incident_words import end_line, sentence
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.memory_limits import MemoryLimits
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.recording_file import RecordingError
from vllm_obs.telemetry.verdict_names import CANNOT_TELL

SCHEMA_VERSION = 1
MAX_STACK_CHARS = 64 * 1024
MAX_LOGS = 64

Document = dict[str, Any]

_logger = logging.getLogger(__name__)


def _nothing(at: int) -> dict[str, Any]:
    return {}


@dataclass
class Scene:
    """Where an incident is told from: the state of the run, its directory, and what its rings' headers say.

    `config` are plain values without secrets; `verdict(at)` says what limited the run until that moment, empty
    where nobody judges that.
    """

    observer: Observer
    run_dir: Path
    rings: list[SeenRing]
    config: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    verdict: Callable[[int], Mapping[str, Any]] = _nothing
    memory_of: Callable[[int], MemoryLimits | None] = lambda pid: None


@dataclass(frozen=True)
class Story:
    """An incident, told: its name, its document, and its files by their place in the folder."""

    name: str
    document: Document
    files: dict[str, bytes]


def tell(finding: Finding, scene: Scene) -> Story:
    """Everything about an incident."""
    state, at = scene.observer.state, finding.happened_at
    gone = {process.generation for end in finding.ends if (process := state.processes.get(*end.key)) is not None}
    ledgers = open_requests(state, at, gone, finding.engine, finding.is_of_servers)
    requests = list(request_rows(state, ledgers, at))
    # What an engine still did before it followed belongs to it.
    until = max([at, *(end.ended_at for end in finding.ends)])
    steps = step_rows(state_with_steps(scene.observer, scene.run_dir), until, finding.engine)
    files = {"steps.jsonl": _lines(steps), "requests.jsonl": _lines(requests)}
    files["processes.json"] = _json(process_rows(state.processes, finding, scene.rings, scene.memory_of))
    files |= _stack_files(finding) | _log_files(scene)
    document = _document(finding, scene, ledgers) | {
        "requests": {
            "num_open": len(ledgers),
            "num_told": len(requests),
            "by_stage": dict(Counter(row["stage"] for row in requests).most_common()),
        },
        "steps": {"num_told": len(steps), "last": steps[-1]["step"] if steps else None},
        "timeline": timeline(finding, steps, ledgers, header_of(scene.rings, finding.role, finding.pid)),
    }
    document["files"] = sorted([*files, DOCUMENT, RECORDING])
    name = document["name"]
    return Story(name, document, files)


def file_story(shelf: IncidentShelf, story: Story, scene: Scene) -> str:
    """Put it on the shelf with a recording of what the rings held last; the name it got. Raises OSError."""

    def record(folder: Path) -> None:
        try:
            save_tails(scene.run_dir, folder / RECORDING, [*scene.observer.facts], scene.version)
        except RecordingError as error:
            _logger.warning("an incident has no recording: %s", error)

    return shelf.add(story.name, {**story.files, DOCUMENT: _json(story.document)}, record)


def _document(finding: Finding, scene: Scene, ledgers: list[SequenceLedger]) -> Document:
    wall_at = scene.observer.wall_offset + finding.happened_at
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall_at / 1e9))
    header = header_of(scene.rings, finding.role, finding.pid)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": f"{moment}-{finding.cause}-{finding.role}",
        "run": scene.observer.run,
        "cause": finding.cause,
        "engine": finding.engine,
        "says": sentence(finding, header, len(ledgers)),
        "happened": {"monotonic_at": finding.happened_at, "wall_at": wall_at},
        "ended": None,
        "helps": _helps(finding, len(ledgers)),
        "filed": {"monotonic_at": time.monotonic_ns(), "wall_at": time.time_ns()},
        "culprit": _culprit(finding, scene),
        "consequences": [_consequence(end) for end in finding.others],
        "failed_steps": [_failed_step(failed) for failed in finding.failed],
        "versions": versions(scene.version),
        "config": dict(scene.config),
        "engines": [_engine(engine.described) for engine in engines_of(scene.observer.state) if engine.described],
        "verdict": _judged(scene, finding.begun_at),
        "telemetry": {
            "lost_records": dict(scene.observer.state.num_lost),
            "resumed_from": scene.observer.cost.resumed_from or None,
        },
        "keys": finding.keys,
    }


def versions(own: str) -> dict[str, str]:
    """Of what ran; nothing is loaded for it."""
    return {
        "vllm_obs": own,
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "kernel": platform.release(),
    }


def _culprit(finding: Finding, scene: Scene) -> Document:
    death, end = finding.death, finding.end
    header = header_of(scene.rings, finding.role, finding.pid)
    trace = death.trace if death is not None else None
    memory = end.memory if end is not None else None
    return {
        "role": finding.role,
        "pid": finding.pid,
        "rank": finding.stall.rank if finding.stall is not None else rank_in(scene.rings, finding.role),
        "exit_code": end.exit_code if end is not None else None,
        "signal": death.signal_name if death is not None else "",
        "is_inferred": death.is_inferred if death is not None else False,
        "error": trace.kind if trace is not None else finding.failed[-1].error_type if finding.failed else "",
        "place": trace.place if trace is not None else "",
        "last_words": death.last_words if death is not None else "",
        "activity": header.activity.label if header is not None else "unknown",
        "step": header.step if header is not None else None,
        "memory": memory._asdict() if memory is not None else None,
        "num_oom_kills": end.num_oom_kills if end is not None else 0,
        "stall": finding.stall._asdict() if finding.stall is not None else None,
    }


def _helps(finding: Finding, num_open: int) -> list[str]:
    stall = finding.stall
    return helps_with(stall.process_state, stall.pid, num_open) if stall is not None else []


def _consequence(end: End) -> Document:
    return {
        "role": end.role,
        "pid": end.pid,
        "exit_code": end.exit_code,
        "ended_at": end.ended_at,
        "says": end_line(end),
    }


def _failed_step(failed: FailedStep) -> Document:
    record = failed.record
    return {"step": record.step, "error": failed.error_type, "num_requests": len(record.request_ids)}


def _engine(described: Any) -> Document:
    return dict(described._asdict())


def _judged(scene: Scene, at: int) -> Document:
    """What held requests back until then; nothing where that cannot be told."""
    try:
        verdict = dict(scene.verdict(at))
    except Exception:  # a judge that fails must not cost the story
        return {}
    return {} if verdict.get("word") == CANNOT_TELL else verdict


def _stack_files(finding: Finding) -> dict[str, bytes]:
    stacks = dict(finding.stacks)
    if finding.death is not None and finding.death.crash_stacks:
        stacks[finding.role] = finding.death.crash_stacks
    return {f"stacks/{title}.txt": text[:MAX_STACK_CHARS].encode() for title, text in stacks.items()}


def _log_files(scene: Scene) -> dict[str, bytes]:
    titles = sorted(path.stem for path in scene.run_dir.glob("*.log"))[:MAX_LOGS]
    tails = {title: log_tail(scene.run_dir, title) for title in titles}
    return {f"logs/{title}.log": "".join(f"{line}\n" for line in tail).encode() for title, tail in tails.items()}


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, default=str).encode() + b"\n"


def _lines(rows: Iterable[Any]) -> bytes:
    return "".join(f"{json.dumps(row, default=str)}\n" for row in rows).encode()
