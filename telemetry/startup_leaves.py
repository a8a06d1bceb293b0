"""Start: how one process started, cut into moments of one named phase each, and what no phase explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from vllm_obs.telemetry.process_table import ProcessFacts
from vllm_obs.telemetry.records import ProcessPhase

FRONTS = ("APIServer", "Launcher")
ENGINE, WORKER, OBSERVER = "EngineCore", "Worker", "Observer"


class Leaf(NamedTuple):
    """A time in which a process was in one phase; empty where no phase says what it did."""

    phase: str
    begun_at: int
    ended_at: int

    @property
    def length_ns(self) -> int:
        """Nanoseconds."""
        return self.ended_at - self.begun_at


@dataclass(frozen=True)
class Start:
    """A process from its spawn to READY, or to `ended_at` where it is not ready: now, or when it died.

    `leaves` follow one another from `begun_at` to `ended_at` without a gap; of phases within phases the innermost.
    """

    facts: ProcessFacts
    begun_at: int
    ended_at: int
    leaves: tuple[Leaf, ...]

    @property
    def role(self) -> str:
        """Its title."""
        return self.facts.role

    @property
    def is_ready(self) -> bool:
        """Whether it ever said READY."""
        return self.facts.ready_at > 0

    @property
    def length_ns(self) -> int:
        """Nanoseconds from spawn to READY, or so far."""
        return self.ended_at - self.begun_at

    @property
    def gaps(self) -> list[Leaf]:
        """What no phase explains."""
        return [leaf for leaf in self.leaves if not leaf.phase]

    @property
    def accounted(self) -> float:
        """Share (0 to 1) of the time that phases explain."""
        gaps = sum(leaf.length_ns for leaf in self.gaps)
        return 1 - gaps / self.length_ns if self.length_ns > 0 else 1.0

    def leaf_before(self, moment: int) -> Leaf | None:
        """What it was in right before that moment; None before its beginning."""
        return next((leaf for leaf in reversed(self.leaves) if leaf.begun_at < moment), None)


def start_of(facts: ProcessFacts, now: int) -> Start | None:
    """How a process started; None for one of which neither a beginning nor a phase is known."""
    moments = [phase.begun_at for phase in facts.phases] + [facts.started_at] * (facts.started_at > 0)
    if not moments:
        return None
    begun_at = min(moments)
    ended_at = facts.ready_at or facts.exited_at or (begun_at if facts.is_gone else now)
    if facts.is_gone and not (facts.ready_at or facts.exited_at):
        ended_at = max(phase.ended_at for phase in facts.phases) if facts.phases else begun_at
    ended_at = max(begun_at, ended_at)
    return Start(facts, begun_at, ended_at, tuple(_leaves(facts.phases, begun_at, ended_at)))


def _leaves(phases: Sequence[ProcessPhase], begun_at: int, ended_at: int) -> list[Leaf]:
    """Cut at every beginning and end; between two cuts the innermost phase is the one that is shortest."""
    edges = {moment for phase in phases for moment in (phase.begun_at, phase.ended_at)} | {begun_at, ended_at}
    cuts = sorted(moment for moment in edges if begun_at <= moment <= ended_at)
    leaves: list[Leaf] = []
    for first, last in pairwise(cuts):
        name = _innermost(phases, first, last)
        if leaves and leaves[-1].phase == name:
            leaves[-1] = leaves[-1]._replace(ended_at=last)
        else:
            leaves.append(Leaf(name, first, last))
    return leaves


def _innermost(phases: Sequence[ProcessPhase], first: int, last: int) -> str:
    around = [phase for phase in phases if phase.begun_at <= first and last <= phase.ended_at]
    return min(around, key=lambda phase: phase.ended_at - phase.begun_at).phase if around else ""


def is_around(outer: ProcessPhase, inner: ProcessPhase) -> bool:
    """Whether a phase is a part of another, longer one."""
    return (
        outer.begun_at <= inner.begun_at
        and inner.ended_at <= outer.ended_at
        and outer.ended_at - outer.begun_at > inner.ended_at - inner.begun_at
    )


def is_front(role: str) -> bool:
    """Whether a process is one that clients wait for: the run is ready when it is."""
    return role.startswith(FRONTS)


def first_starts(starts: Sequence[Start]) -> list[Start]:
    """Those of the run's own start; what was started (again) once it was ready is not among them."""
    fronts = [start for start in starts if is_front(start.role)]
    if not fronts:
        return list(starts)
    first = min(fronts, key=lambda start: start.begun_at)
    return [start for start in starts if start.begun_at <= first.ended_at]
