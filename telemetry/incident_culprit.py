"""Which of several ends was the first cause, and which only followed from it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from vllm_obs.telemetry.death_watch import End
from vllm_obs.telemetry.process_roles import API_SERVER, CORE, LAUNCHER, OBSERVER, WORKER, engine_of_role

EXIT_BAD_CONFIGURATION = 78
"""Its start was refused in words; nothing broke."""

_FRONTS = (LAUNCHER, API_SERVER)
_OWNERS = {API_SERVER: (LAUNCHER,), CORE: _FRONTS, WORKER: (CORE,), OBSERVER: _FRONTS, LAUNCHER: ()}
"""Who may own a process of a kind: one API server owns all others; several are owned by a launcher, like them."""
_ORDER = (WORKER, CORE, API_SERVER, LAUNCHER, OBSERVER, "")
"""Whoever is owned dies of its own before it takes its owner along; an Observer takes nobody."""


class Judgement(NamedTuple):
    """The end that all began with, and the ends that followed or came at the same time."""

    first: End
    others: list[End]


def judged(ends: Iterable[End]) -> Judgement | None:
    """What these ends, seen within a second or two, amount to; None if no process died.

    One that its owner recorded had ended while the owner lived, so its end came first. One that nobody recorded
    counts when its owner is gone as well, and then followed from that; the root's own end nobody records. But an
    engine that was seen to fail while its server still lived came first, though that had no time to record it.
    """
    counting = [end for end in ends if not end.was_told and end.exit_code != EXIT_BAD_CONFIGURATION]
    roots_at = min((end.ended_at for end in counting if kind_of(end.role) in _FRONTS), default=0)
    counting = [end._replace(is_recorded=True) if _failed_before(end, roots_at) else end for end in counting]
    recorded = sorted((end for end in counting if end.is_recorded), key=_priority)
    roots = [end for end in _roots(counting) if end.exit_code != 0]
    followers = _followers([end for end in counting if not end.is_recorded and end not in roots], recorded + roots)
    if recorded and kind_of(recorded[0].role) == OBSERVER:
        recorded, roots = roots, recorded
    found = [*recorded, *roots, *followers]
    return Judgement(found[0], found[1:]) if found else None


def apart(ends: Iterable[End], started_at: Callable[[End], int]) -> list[list[End]]:
    """The ends of engines that followed one upon the other, oldest first: each engine with what it took along.

    A worker that had started (monotonic ns, 0 where nobody knows) by an engine's death goes with that one: its own
    end may have been seen later. All else goes by its time.
    """
    known = list(ends)
    engines = sorted((end for end in known if kind_of(end.role) == "EngineCore"), key=lambda end: end.ended_at)
    cuts = [
        end.ended_at
        for number, end in enumerate(engines)
        if any(later.role == end.role and later.pid != end.pid for later in engines[number + 1 :])
    ]
    groups: list[list[End]] = [[] for _ in range(len(cuts) + 1)]
    for end in known:
        is_worker = kind_of(end.role) == "Worker"
        groups[bisect_left(cuts, (is_worker and started_at(end)) or end.ended_at)].append(end)
    return [group for group in groups if group]


def by_engine(ends: list[End]) -> list[list[End]]:
    """Ends at about the same time, each engine's for themselves where several engines have any.

    Engines take nobody of each other along. Where whoever owned them is gone as well, all followed from that.
    """
    is_root_gone = any(kind_of(end.role) in _FRONTS and not end.is_recorded for end in ends)
    groups: dict[str, list[End]] = {}
    for end in ends:
        groups.setdefault(engine_of_role(end.role), []).append(end)
    return [ends] if is_root_gone or len(groups.keys() - {""}) < 2 else list(groups.values())


def kind_of(role: str) -> str:
    """EngineCore for EngineCore_DP0; empty for what is none of ours."""
    return next((kind for kind in _OWNERS if role.startswith(kind)), "")


def _roots(ends: list[End]) -> list[End]:
    """Of those whose ends nobody recorded the ones that nobody owned: a launcher, or without one the servers."""
    fronts = [end for end in ends if not end.is_recorded and kind_of(end.role) in (*_FRONTS, "")]
    launchers = [end for end in fronts if kind_of(end.role) == LAUNCHER]
    return launchers or fronts


def _followers(ends: list[End], gone: list[End]) -> list[End]:
    """Those of these whose owners are among the gone, and then theirs."""
    found: list[End] = []
    for kind in (API_SERVER, CORE, WORKER, OBSERVER):
        found += [end for end in ends if kind_of(end.role) == kind and _is_owned(end, gone + found)]
    return found


def _is_owned(end: End, gone: list[End]) -> bool:
    owners = [owner for owner in gone if kind_of(owner.role) in _OWNERS[kind_of(end.role)]]
    if kind_of(end.role) == WORKER:
        return any(engine_of_role(owner.role) == engine_of_role(end.role) for owner in owners)
    return bool(owners)


def _failed_before(end: End, roots_at: int) -> bool:
    return kind_of(end.role) == CORE and bool(end.exit_code) and end.ended_at < roots_at


def _priority(end: End) -> tuple[int, bool, int]:
    # Of several ranks one was killed, and the others gave up because of it.
    has_signal = end.exit_code is not None and end.exit_code < 0
    return _ORDER.index(kind_of(end.role)), not has_signal, end.ended_at
