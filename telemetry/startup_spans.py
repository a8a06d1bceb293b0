"""StartupSpans: the trace of how the run's processes started, each with its named phases."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from vllm_obs.telemetry import span_names
from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, ProcessStarted
from vllm_obs.telemetry.span import Attributes, Process, Span, child_id
from vllm_obs.telemetry.trace_ids import span_id
from vllm_obs.telemetry.view import Source

MAX_PROCESSES = 256
MAX_PHASES = 256

_FRONT = ("APIServer", "Launcher")
_APART = "Observer"
"""It is started beside the others, and nobody waits for it."""


@dataclass
class _Start:
    process: Process
    started_at: int
    phases: list[ProcessPhase] = field(default_factory=list)
    ready_at: int = 0

    @property
    def begun_at(self) -> int:
        """When it was spawned, where a phase says so; what it records first comes later."""
        return min([self.started_at, *(phase.begun_at for phase in self.phases)])


class StartupSpans:
    """Collects what processes record while they start.

    The first trace is the whole tree's, made when all of it is ready: a root `startup` with a span for each
    process. One that starts later (again) has a trace of its own. Not more than `MAX_PROCESSES` are waited for.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._starts: dict[int, _Start] = {}
        self._is_running = False

    def started(self, source: Source, started: ProcessStarted) -> None:
        """A process began."""
        if len(self._starts) >= MAX_PROCESSES:
            del self._starts[next(iter(self._starts))]
        process = Process(started.role, started.pid, host=source.host)
        self._starts[source.generation] = _Start(process, started.started_at)

    def phase(self, source: Source, phase: ProcessPhase) -> None:
        """A part of its start is over."""
        start = self._starts.get(source.generation)
        if start is not None and len(start.phases) < MAX_PHASES:
            start.phases.append(phase)

    def ready(self, source: Source, ready: ProcessReady) -> list[Span]:
        """It answered READY: the spans of the tree if it was the last, its own if it came later."""
        start = self._starts.get(source.generation)
        if start is None or start.ready_at:
            return []
        start.ready_at = ready.ready_at
        if self._is_running or start.process.role == _APART:
            del self._starts[source.generation]
            return list(self._process_spans(start, self._trace_id(source.generation), 0, source.generation))
        return self._tree() if self._is_tree_ready() else []

    def _is_tree_ready(self) -> bool:
        starts = [start for start in self._starts.values() if start.process.role != _APART]
        is_served = any(start.process.role.startswith(_FRONT) for start in starts)
        return is_served and all(start.ready_at for start in starts)

    def _tree(self) -> list[Span]:
        self._is_running = True
        ready = {generation: start for generation, start in self._starts.items() if start.ready_at}
        self._starts = {generation: start for generation, start in self._starts.items() if not start.ready_at}
        trace_id, root_id = self._trace_id("run"), span_id(self._run, "startup", "run")
        first = min(ready.values(), key=lambda start: start.begun_at)
        last_at = max(start.ready_at for start in ready.values())
        root = Span(trace_id, root_id, 0, "startup", first.begun_at, last_at, first.process)
        spans = [root]
        for generation, start in ready.items():
            spans += self._process_spans(start, trace_id, root_id, generation)
        return spans

    def _process_spans(self, start: _Start, trace_id: int, above_id: int, generation: int) -> Iterator[Span]:
        own_id = span_id(self._run, "startup", generation)
        attributes: Attributes = {span_names.ROLE: start.process.role, span_names.ACCOUNTED: accounted(start)}
        name = f"start {start.process.role}"
        moments = (start.begun_at, max(start.begun_at, start.ready_at))
        yield Span(trace_id, own_id, above_id, name, *moments, start.process, attributes)
        for number, phase in enumerate(start.phases):
            above = _around(start.phases, number)
            parent_id = own_id if above is None else child_id(own_id, above + 1)
            moments = (phase.begun_at, phase.ended_at)
            yield Span(trace_id, child_id(own_id, number + 1), parent_id, phase.phase, *moments, start.process)

    def _trace_id(self, number: int | str) -> int:
        return span_id(self._run, "startup trace", number) << 64 | span_id(self._run, "startup", number)


def _around(phases: list[ProcessPhase], number: int) -> int | None:
    """The phase that this one is a part of: the next recorded that covers it, for the inner ones end first."""
    inner = phases[number]
    for index in range(number + 1, len(phases)):
        outer = phases[index]
        if outer.begun_at <= inner.begun_at and outer.ended_at >= inner.ended_at:
            return index
    return None


def accounted(start: _Start) -> float:
    """The share, 0 to 1, of a start that its phases cover; phases may overlap."""
    covered, reached = 0, start.begun_at
    for phase in sorted(start.phases, key=lambda phase: phase.begun_at):
        begun_at, ended_at = max(phase.begun_at, reached), min(phase.ended_at, start.ready_at)
        if ended_at > begun_at:
            covered += ended_at - begun_at
            reached = ended_at
    whole = start.ready_at - start.begun_at
    return covered / whole if whole > 0 else 1.0
