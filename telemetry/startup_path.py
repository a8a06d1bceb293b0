"""The critical path of a start: at each moment, the phase of the process that being ready hung on."""

from collections.abc import Sequence
from typing import NamedTuple

from vllm_obs.telemetry.process_roles import API_SERVER, LAUNCHER, engine_of_role
from vllm_obs.telemetry.startup_leaves import ENGINE, WORKER, Leaf, Start, is_front

MAX_TURNS = 1024

_AWAITED = {"wait for engine": ENGINE, "make core": WORKER, "wait for the other ranks": WORKER}
"""A phase that waits → what kind of process it waits for."""
_LOADING = "load weights"
"""What a rank has done when the others go on with it."""


class Segment(NamedTuple):
    """The run hung on this phase of this process then; the phase is empty where none says what it did."""

    role: str
    pid: int
    phase: str
    begun_at: int
    ended_at: int

    @property
    def length_ns(self) -> int:
        """Nanoseconds."""
        return self.ended_at - self.begun_at


def critical_path(starts: Sequence[Start]) -> list[Segment]:
    """From the beginning of the run to when it is ready, without a gap; empty where no API server is known.

    Walked backwards: a phase that waits is left at the moment at which what it waited for came, for the process
    that it came from; the beginning of a process is the doing of the one that started it.
    """
    fronts = [start for start in starts if is_front(start.role)]
    if not fronts:
        return []
    start = max(fronts, key=lambda front: front.ended_at)
    moment = start.ended_at
    path: list[Segment] = []
    for _ in range(MAX_TURNS):
        leaf = start.leaf_before(moment)
        if leaf is None:
            parent = _parent(start, starts)
            if parent is None:
                break
            start = parent
            continue
        came = _came_from(leaf, moment, start, starts)
        reached = leaf.begun_at if came is None else came[1]
        if reached < moment:
            path.append(Segment(start.role, start.facts.pid, leaf.phase, reached, moment))
        start, moment = (start, reached) if came is None else came
    return path[::-1]


def _came_from(leaf: Leaf, moment: int, waiting: Start, starts: Sequence[Start]) -> tuple[Start, int] | None:
    """The process whose coming ended this wait, and when it came; None for no wait, or one for nothing known."""
    kind = _awaited_by(waiting, leaf)
    if kind is None:
        return None
    others = [start for start in starts if start.role.startswith(kind) and start is not waiting]
    if kind == WORKER:
        others = [start for start in others if engine_of_role(start.role) == engine_of_role(waiting.role)]
    came = [(start, _given_at(start, leaf)) for start in others]
    late = [(start, at) for start, at in came if leaf.begun_at < at <= moment]
    return max(late, key=lambda pair: pair[1], default=None)


def _awaited_by(waiting: Start, leaf: Leaf) -> str | None:
    """What kind of process a phase waits for; a launcher only ever waits for its API servers."""
    return API_SERVER if waiting.role.startswith(LAUNCHER) else _AWAITED.get(leaf.phase)


def _given_at(start: Start, leaf: Leaf) -> int:
    if leaf.phase != "wait for the other ranks":
        return start.ended_at if start.is_ready else 0
    return max((phase.ended_at for phase in start.facts.phases if phase.phase == _LOADING), default=0)


def _parent(start: Start, starts: Sequence[Start]) -> Start | None:
    """Who started it: an engine its workers, a launcher everything else, or without one the API server."""
    if start.role.startswith(WORKER):
        label = engine_of_role(start.role)
        above = [
            other for other in starts if other.role.startswith(ENGINE) and engine_of_role(other.role) == label
        ]
    else:
        above = [other for other in starts if other.role.startswith(LAUNCHER)]
        if not above and not is_front(start.role):
            above = [other for other in starts if is_front(other.role)]
    earlier = [other for other in above if other.begun_at < start.begun_at]
    return max(earlier, key=lambda other: other.begun_at, default=None)
