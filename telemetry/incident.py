"""IncidentFiler: sees deaths, stalls and failed steps, waits for what follows from each, and files an incident."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from vllm_obs.telemetry.death_watch import DeathWatch, End, SeenRing, rings_of
from vllm_obs.telemetry.incident_backlog import IncidentBacklog, Write
from vllm_obs.telemetry.incident_culprit import Judgement, apart, by_engine, judged
from vllm_obs.telemetry.incident_finding import (
    FailedStep,
    Finding,
    finding_of_death,
    finding_of_stall,
    finding_of_steps,
    header_of,
)
from vllm_obs.telemetry.incident_mending import keys_of
from vllm_obs.telemetry.incident_open_stalls import Amended, OpenStalls
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.incident_story import Scene, file_story, tell
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.records import (
    IncidentFiled,
    ProcessExited,
    Record,
    StallBegun,
    StallEnded,
    StepFailed,
)
from vllm_obs.telemetry.view import BaseView, Source

GRACE_NS = 1_500_000_000
"""So long after the first sign what ends, too, is taken to have followed from it."""
STEP_QUIET_NS = 60_000_000_000
"""So long after a step that failed others that fail alike in the same engine make no incident of their own."""
MAX_ENDS = 64
MAX_FAILED_STEPS = 64
MAX_KEYS = 1024
OWNER_SECONDS = 1.0
DRAIN_SECONDS = 1.0
ROLES_THAT_FOLLOW = ("APIServer", "EngineCore", "Worker")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IncidentPorts:
    """Where an incident's scene comes from, and who is told of it.

    `scene` is given the rings as they are; `catch_up` drains all there is; `record` keeps the Observer's own fact;
    `write` puts a story on the shelf.
    """

    scene: Callable[[list[SeenRing]], Scene]
    record: Callable[[Record], None]
    catch_up: Callable[[], bool]
    write: Write = file_story


class IncidentFiler(BaseView):
    """Looks about once a second, from the Observer's thread. Nothing that happens to it reaches the Observer."""

    record_kinds = (ProcessExited, StepFailed, StallEnded)

    def __init__(self, shelf: IncidentShelf, watch: DeathWatch, ports: IncidentPorts) -> None:
        self.num_failures = 0
        self._backlog = IncidentBacklog(shelf, ports.write)
        self._watch = watch
        self._ports = ports
        self._run_dir = shelf.path.parent
        self._ends: OrderedDict[tuple[str, int], End] = OrderedDict()
        self._failed: list[FailedStep] = []
        self._failed_before: dict[tuple[int, str], int] = {}
        self._opened_at = 0
        documents = shelf.documents()
        self._known: dict[str, None] = {key: None for each in documents for key in keys_of(each)}
        self._stalls = OpenStalls(self._run_dir, self._backlog, documents)

    def record(self, source: Source, record: Record) -> None:
        """A process that ended, a step that failed, or a stall that is over."""
        if isinstance(record, ProcessExited):
            end = End(record.role, record.pid, record.exit_code, record.exited_at, True, record.was_told)
            self._see(end)
        elif isinstance(record, StepFailed):
            self._see_failed(FailedStep(source, record))
        elif isinstance(record, StallEnded):
            ended = record
            self._guarded(lambda: self._tell(self._stalls.end(ended)))

    def stall(self, stall: StallBegun, stacks: Mapping[str, str]) -> None:
        """An engine stands still; the stacks are of its processes by their titles."""
        finding = finding_of_stall(stall, dict(stacks))
        if finding.keys[0] not in self._known:
            self._guarded(lambda: self._file(finding))

    def look(self, now: int, is_last: bool = False) -> None:
        """See who has died, and file what was seen long enough ago: at once if there will be no other look."""
        self._guarded(lambda: self._look(now, is_last))

    def finish(self, is_owner_gone: bool) -> None:
        """The last look. With the owner gone, its end and what followed from it are awaited, and read."""
        if is_owner_gone:
            for role in ROLES_THAT_FOLLOW:
                self._watch.await_end(role, OWNER_SECONDS)
            deadline = time.monotonic() + DRAIN_SECONDS
            while not self._ports.catch_up() and time.monotonic() < deadline:
                continue
        self.look(time.monotonic_ns(), is_last=True)
        self._guarded(lambda: self._tell(self._stalls.end_all(time.monotonic_ns())))
        self._guarded(lambda: self._retry(time.monotonic_ns(), is_last=True))
        self._watch.close()

    def _look(self, now: int, is_last: bool) -> None:
        self._retry(now)
        for end in self._watch.look(now):
            self._see(end)
        if judged(self._ends.values()) is None and not self._failed:
            self._opened_at = 0
            return
        self._opened_at = self._opened_at or now
        if is_last or now - self._opened_at >= GRACE_NS:
            self._opened_at = 0
            self._conclude()

    def _conclude(self) -> None:
        rings = list(rings_of(self._run_dir))
        groups = apart(self._ends.values(), partial(_started_at, rings))
        for judgement in filter(None, map(judged, chain.from_iterable(map(by_engine, groups)))):
            self._file_deaths(judgement, rings)
        failed, self._failed = self._failed, []
        for engine in dict.fromkeys(step.engine for step in failed):
            self._file(finding_of_steps([step for step in failed if step.engine == engine]), rings)

    def _file_deaths(self, judgement: Judgement, rings: list[SeenRing]) -> None:
        ends = (judgement.first, *judgement.others)
        pids = {end.pid for end in ends}
        failed = [step for step in self._failed if step.source.pid in pids]
        self._failed = [step for step in self._failed if step.source.pid not in pids]
        for end in ends:
            self._ends.pop(end.key, None)
        self._file(finding_of_death(judgement, failed, self._run_dir, rings), rings)

    def _file(self, finding: Finding, rings: list[SeenRing] | None = None) -> None:
        for key in finding.keys:
            self._know(key)
        scene = self._ports.scene(list(rings_of(self._run_dir)) if rings is None else rings)
        document, is_written = self._backlog.file(tell(finding, scene), scene)
        if is_written:
            _logger.warning("incident %s: %s", document["name"], document["says"])
        self._record(document, is_written)
        if finding.stall is not None:
            self._tell(self._stalls.begin(finding.keys[0], document["name"]))

    def _retry(self, now: int, is_last: bool = False) -> None:
        for document in self._backlog.retry(now, is_last):
            self._record(document, is_written=True)

    def _tell(self, amended: Amended) -> None:
        """Of stalls that are over."""
        for document, is_written in amended:
            _logger.warning("incident %s is over: %s", document["name"], document["says"])
            self._record(document, is_written)

    def _record(self, document: Mapping[str, Any], is_written: bool) -> None:
        culprit = document["culprit"]
        filed = IncidentFiled(
            incident=document["name"],
            cause=document["cause"],
            role=culprit["role"],
            pid=culprit["pid"],
            says=document["says"],
            happened_at=document["happened"]["monotonic_at"],
            filed_at=time.monotonic_ns() if is_written else 0,
        )
        self._ports.record(filed)

    def _see(self, end: End) -> None:
        """Merge what the owner recorded and what was seen: the one knows the exit code, the other the memory."""
        if f"end {end.role} {end.pid}" in self._known:
            return
        before = self._ends.get(end.key)
        if before is not None:
            recorded, watched = (end, before) if end.is_recorded else (before, end)
            end = recorded._replace(memory=watched.memory, num_oom_kills=watched.num_oom_kills)
        if end.was_told:
            self._know(f"end {end.role} {end.pid}")
            self._ends.pop(end.key, None)
            return
        self._ends[end.key] = end
        if len(self._ends) > MAX_ENDS:
            self._ends.popitem(last=False)

    def _see_failed(self, failed: FailedStep) -> None:
        key = f"step {failed.source.role} {failed.source.pid} {failed.record.step}"
        kind = (failed.source.generation, failed.error_type)
        last_at, failed_at = self._failed_before.get(kind, -STEP_QUIET_NS), failed.record.failed_at
        is_pending = any(step.source == failed.source for step in self._failed)
        if key in self._known or (failed_at - last_at < STEP_QUIET_NS and not is_pending):
            return
        self._failed_before[kind] = failed_at
        if len(self._failed_before) > MAX_FAILED_STEPS:
            del self._failed_before[next(iter(self._failed_before))]
        if len(self._failed) < MAX_FAILED_STEPS:
            self._failed.append(failed)

    def _know(self, key: str) -> None:
        self._known[key] = None
        if len(self._known) > MAX_KEYS:
            del self._known[next(iter(self._known))]

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:
            self.num_failures += 1
            if self.num_failures == 1:
                _logger.exception("an incident was not filed; later failures are counted only")


def _started_at(rings: list[SeenRing], end: End) -> int:
    header = header_of(rings, *end.key)
    return header.started_at if header is not None else 0


def open_filer(
    observer: Observer,
    config: ObserverConfig,
    record: Callable[[Record], None],
    verdict: Callable[[int], Mapping[str, Any]],
) -> IncidentFiler:
    """The filer of a live run; `record` keeps a fact in the Observer's own ring, `verdict` judges till then."""
    run_dir, watch = config.run_dir, DeathWatch(config.run_dir)

    def scene(rings: list[SeenRing]) -> Scene:
        return Scene(observer, run_dir, rings, config.shown(), config.version, verdict, watch.memory_of)

    return IncidentFiler(IncidentShelf(run_dir), watch, IncidentPorts(scene, record, observer.drain_slice))
