"""A stall as an incident tells it: what helps while it lasts, and, once it is over, how and after how long."""

from collections.abc import Mapping
from typing import Any, Literal

from vllm_obs.telemetry.explain_words import count

StallEnd = Literal["moved", "died", "run_ended"]
"""moved: it goes on. died: the process at fault is gone. run_ended: nothing of the run is left to go on."""
STOPPED_STATES = frozenset("Tt")
"""The kernel's letters for a process that was stopped."""
NS = 1e9

Document = dict[str, Any]

_WAS = {
    "T": "was stopped by a signal",
    "t": "was stopped by a debugger",
    "D": "waited in the kernel (disk or driver)",
    "Z": "had ended",
    "X": "had ended",
}
_LOOPS = {"APIServer": "The event loop of an API server", "Launcher": "The event loop of the launcher"}
_THEN = {
    "moved": ("moved again after {length}", " and moved again"),
    "died": ("its process ended after {length}", ", until its process ended"),
    "run_ended": ("it lasted until the run ended", ", until the run ended"),
}


def lasts(document: Mapping[str, Any]) -> bool:
    """Whether an incident is a stall whose end has not been seen."""
    return document.get("cause") == "stalled" and not document.get("ended")


def helps_with(process_state: str, pid: int, num_open: int) -> list[str]:
    """What can be done about a process that was stopped; empty for any other."""
    if process_state not in STOPPED_STATES:
        return []
    cost = f"loses {count(num_open, 'open request')}" if num_open else "loses nothing: no request is open"
    return [f"kill -CONT {pid} lets it go on; a restart {cost}."]


def settled(document: Mapping[str, Any], how: StallEnd, ended_at: int | None) -> Document:
    """The document of a stall that is over, in the past tense; `ended_at` (monotonic ns) is None where unknown."""
    stall = document["culprit"].get("stall") or {}
    length = f"{(ended_at - stall['stuck_at']) / NS:.1f} s" if ended_at and "stuck_at" in stall else ""
    after, _ = _THEN[how]
    happened = document["happened"]
    wall_at = happened["wall_at"] + ended_at - happened["monotonic_at"] if ended_at else None
    says = after.format(length=length or "some time")
    events = [{"at": ended_at, "says": f"the stall was over: {says}"}] if ended_at else []
    return {
        **document,
        # One that was never written down is known by its sentence alone.
        "says": _sentence(document, stall, how, length) if stall else f"{document['says']} ({says.capitalize()}.)",
        "ended": {"monotonic_at": ended_at, "wall_at": wall_at, "says": says},
        "helps": [],
        "timeline": [*document["timeline"], *events],
    }


def _sentence(document: Mapping[str, Any], stall: Mapping[str, Any], how: StallEnd, length: str) -> str:
    culprit, num_open = document["culprit"], document["requests"]["num_open"]
    engine, rank = stall.get("engine", ""), stall.get("rank", -1)
    who = f"Engine {engine}" if engine else _LOOPS.get(culprit["role"].partition("_")[0], "An event loop")
    which = f"{culprit['role']} ({f'rank {rank}, ' if rank >= 0 else ''}pid {culprit['pid']})"
    was = _WAS.get(stall.get("process_state", ""), "did not get on")
    where = f", last seen {stall.get('activity', 'unknown')} in step {stall.get('step', 0)}" if engine else ""
    lasted = f" for {length}" if length else ""
    requests = f" {count(num_open, 'request')} {'was' if num_open == 1 else 'were'} open." if num_open else ""
    return f"{who} stood still{lasted}{_THEN[how][1]}: {which} {was}{where}.{requests}"
