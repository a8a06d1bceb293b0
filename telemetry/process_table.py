"""ProcessTable: the processes of a run with their start-up, as they and their owners recorded it."""

from collections import OrderedDict
from dataclasses import dataclass, field

from vllm_obs.telemetry.records import ProcessExited, ProcessPhase, ProcessReady, ProcessStarted
from vllm_obs.telemetry.view import Source

MAX_PROCESSES = 256
MAX_PHASES = 64


@dataclass(slots=True)
class ProcessFacts:
    """One process; moments are monotonic ns, 0 while unknown. `exit_code` is None while nobody saw it end.

    `was_told` says that its owner had ordered that end, or brought it about. `host` is empty for this host.
    """

    role: str
    pid: int
    generation: int = 0
    started_at: int = 0
    wall_at: int = 0
    ready_at: int = 0
    exited_at: int = 0
    exit_code: int | None = None
    is_gone: bool = False
    phases: list[ProcessPhase] = field(default_factory=list)
    was_told: bool = False
    host: str = ""

    @property
    def state(self) -> str:
        """starting, ready or exited."""
        return "exited" if self.exited_at or self.is_gone else "ready" if self.ready_at else "starting"

    @property
    def accounted_share(self) -> float:
        """How much of the time from start to ready its phases explain, 0 … 1; overlaps count once."""
        total = self.ready_at - self.started_at
        if total <= 0:
            return 0.0
        covered, reached = 0, self.started_at
        for phase in sorted(self.phases, key=lambda phase: phase.begun_at):
            begun_at, ended_at = max(phase.begun_at, reached), min(phase.ended_at, self.ready_at)
            covered += max(0, ended_at - begun_at)
            reached = max(reached, ended_at)
        return covered / total


class ProcessTable:
    """The last 256 processes by role and pid; one that exited stays until room is needed."""

    def __init__(self) -> None:
        self._processes: OrderedDict[tuple[str, int], ProcessFacts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._processes)

    def all(self) -> list[ProcessFacts]:
        """Every process kept, in the order in which they were first heard of."""
        return list(self._processes.values())

    def get(self, role: str, pid: int) -> ProcessFacts | None:
        """The process with that role and pid."""
        return self._processes.get((role, pid))

    def seen(self, source: Source) -> ProcessFacts:
        """The process that wrote a record."""
        process = self._of(source.role, source.pid)
        process.generation, process.host = source.generation, source.host
        return process

    def gone(self, source: Source) -> None:
        """Its ring ended: the process is dead, whether or not its owner recorded it."""
        self.seen(source).is_gone = True

    def started(self, record: ProcessStarted, host: str = "") -> None:
        """It began, on that host."""
        process = self._of(record.role, record.pid)
        process.started_at, process.wall_at, process.host = record.started_at, record.wall_at, host

    def phase(self, source: Source, record: ProcessPhase) -> None:
        """Part of its start-up; one whose role is not the writer's belongs to the last process with that role."""
        process = self._last_of(record.role) if record.role != source.role else None
        process = process or self.seen(source)
        if len(process.phases) < MAX_PHASES:
            process.phases.append(record)

    def ready(self, record: ProcessReady) -> None:
        """It answered READY."""
        self._of(record.role, record.pid).ready_at = record.ready_at

    def exited(self, record: ProcessExited) -> None:
        """Its owner saw it end."""
        process = self._of(record.role, record.pid)
        process.exit_code, process.exited_at = record.exit_code, record.exited_at
        process.was_told = record.was_told

    def state(self) -> list[ProcessFacts]:
        """For a checkpoint."""
        return self.all()

    def restore(self, processes: list[ProcessFacts]) -> None:
        """Go on from a checkpoint."""
        self._processes = OrderedDict(((process.role, process.pid), process) for process in processes)

    def _last_of(self, role: str) -> ProcessFacts | None:
        return next((process for process in reversed(self._processes.values()) if process.role == role), None)

    def _of(self, role: str, pid: int) -> ProcessFacts:
        key = (role, pid)
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = ProcessFacts(role, pid)
            if len(self._processes) > MAX_PROCESSES:
                self._forget_one()
        return process

    def _forget_one(self) -> None:
        exited = (key for key, process in self._processes.items() if process.state == "exited")
        del self._processes[next(exited, next(iter(self._processes)))]
