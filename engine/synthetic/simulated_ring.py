"""SimulatedRing: the recorder of a process that is only simulated, with a header as it is at any moment."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import Record

TakeRecord = Callable[[int, "SimulatedSource", Record], None]
"""Takes the moment of a record, who wrote it, and the record."""


class SimulatedSource(NamedTuple):
    """The process that wrote a record, with the fields that the Observer's `Source` has."""

    role: str
    pid: int
    generation: int
    engine: str


class SimulatedHeader(NamedTuple):
    """What a ring's header shows at one moment; `is_stopped` is what the kernel would say of the process."""

    role: str
    pid: int
    heartbeat_at: int = 0
    step: int = 0
    progress: int = 0
    activity: Activity = Activity.STARTING
    activity_at: int = 0
    closed_at: int = 0
    is_stopped: bool = False


class SimulatedRing:
    """A ProcessRecorder under the clock of its own process, which may run ahead of the rest of the run.

    Its header stays as it was at the start unless it `is_watched`: to keep what it shows at each moment takes
    more time than the run itself.
    """

    def __init__(
        self, source: SimulatedSource, now: Callable[[], int], take: TakeRecord, is_watched: bool = True
    ) -> None:
        self.source = source
        self.is_watched = is_watched
        self._now = now
        self._take = take
        self._header = SimulatedHeader(source.role, source.pid)
        self._changes: deque[tuple[int, str, Any]] = deque()
        self._progress = 0

    def record(self, record: Record) -> None:
        """Keep one fact, of now."""
        self._take(self._now(), self.source, record)

    def heartbeat(self, now: int) -> None:
        """The main loop went round."""
        self._change("heartbeat_at", now)

    def begin_step(self, step: int) -> None:
        """The process is in this step now."""
        self._change("step", step)

    def doing(self, activity: Activity) -> None:
        """What the process does from now on."""
        self._change("activity", activity)
        self._change("activity_at", self._now())

    def advance(self) -> None:
        """Something moved within the step."""
        self._progress += 1
        self._change("progress", self._progress)

    def close(self) -> None:
        """The process ends in order."""
        self._change("closed_at", self._now())

    def header_at(self, moment: int) -> SimulatedHeader:
        """The header as it is then; moments must not go back."""
        changes, due = self._changes, dict[str, Any]()
        while changes and changes[0][0] <= moment:
            _, field, value = changes.popleft()
            due[field] = value
        if due:
            self._header = self._header._replace(**due)
        return self._header

    def _change(self, field: str, value: Any) -> None:
        if self.is_watched:
            self._changes.append((self._now(), field, value))
