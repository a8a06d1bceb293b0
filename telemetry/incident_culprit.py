"""Which of several ends was the first cause, and which only followed from it."""

from collections.abc import Iterable
from typing import NamedTuple

from vllm_obs.telemetry.death_watch import End

EXIT_BAD_CONFIGURATION = 78
"""Its start was refused in words; nothing broke."""

_OWNERS = {"Worker": "EngineCore", "EngineCore": "APIServer", "Observer": "APIServer", "APIServer": ""}
_ORDER = ("Worker", "EngineCore", "APIServer", "Observer", "")
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
    roots_at = min((end.ended_at for end in counting if kind_of(end.role) == "APIServer"), default=0)
    counting = [end._replace(is_recorded=True) if _failed_before(end, roots_at) else end for end in counting]
    recorded = sorted((end for end in counting if end.is_recorded), key=_priority)
    roots = [end for end in counting if not end.is_recorded and not _owner_of(end) and end.exit_code != 0]
    followers = _followers(counting, {kind_of(end.role) for end in (*recorded, *roots)})
    if recorded and kind_of(recorded[0].role) == "Observer":
        recorded, roots = roots, recorded
    found = [*recorded, *roots, *followers]
    return Judgement(found[0], found[1:]) if found else None


def kind_of(role: str) -> str:
    """EngineCore for EngineCore_DP0; empty for what is none of ours."""
    return next((kind for kind in _OWNERS if role.startswith(kind)), "")


def rank_of(role: str) -> int:
    """A worker's rank; -1 for what is no worker."""
    digits = role.rpartition("_TP")[2]
    return int(digits) if role.startswith("Worker") and digits.isdecimal() else -1


def _followers(ends: list[End], gone: set[str]) -> list[End]:
    found: list[End] = []
    for kind in ("EngineCore", "Worker", "Observer"):
        of_kind = [end for end in ends if kind_of(end.role) == kind and not end.is_recorded]
        if _OWNERS[kind] in gone and of_kind:
            gone.add(kind)
            found += of_kind
    return found


def _failed_before(end: End, roots_at: int) -> bool:
    return kind_of(end.role) == "EngineCore" and bool(end.exit_code) and end.ended_at < roots_at


def _owner_of(end: End) -> str:
    return _OWNERS.get(kind_of(end.role), "")


def _priority(end: End) -> tuple[int, bool, int]:
    # Of several ranks one was killed, and the others gave up because of it.
    has_signal = end.exit_code is not None and end.exit_code < 0
    return _ORDER.index(kind_of(end.role)), not has_signal, end.ended_at
