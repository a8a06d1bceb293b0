"""Probes of the server on the inspector's port, by what the headers of its processes say: no record is read."""

from collections.abc import Iterable, Sequence
from typing import Literal

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.process_roles import API_SERVER, CORE, LAUNCHER, engine_of_role
from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.watchdog import Watchdog
from vllm_obs.telemetry.watchdog_rule import ProcessLook

PROBES = frozenset({"/livez", "/readyz", "/startupz"})
"""Answered without the drain that comes before all else."""

Phase = Literal["loading", "ready", "stalled", "broken", "restarting", "draining", "dead"]
"""How a server is, in the API server's own words."""

_SAYS: dict[Phase, str] = {
    "loading": "the model is being loaded",
    "ready": "requests are let in",
    "stalled": "every engine, every API server or their launcher does not get on",
    "broken": "the model gave no usable probabilities several times in a row",
    "restarting": "the engine died and another is being started",
    "draining": "the server is shutting down",
    "dead": "the API server is gone",
}
_PHASES: dict[Activity, Phase] = {
    Activity.SERVING: "ready",
    Activity.BROKEN: "broken",
    Activity.RESTARTING: "restarting",
    Activity.STOPPING: "draining",
}
"""Of an API server that does this; one that does anything else is being loaded."""
_BEST_FIRST: tuple[Phase, ...] = ("ready", "broken", "restarting", "loading", "draining")
_NOT_STARTED: tuple[Phase, ...] = ("loading", "dead")


def probe_router(context: InspectContext) -> Router:
    """The routes, over one Observer; 404 of a recording. They answer also while the server itself hangs."""
    router = Router()
    watchdog = context.watchdog

    @router.get("/livez", summary="Probe: 503 when the server is dead, and must be started again")
    async def live() -> Reply:
        return _answer(watchdog, ("dead",))

    @router.get("/startupz", summary="Probe: 503 until the start is over")
    async def started() -> Reply:
        return _answer(watchdog, _NOT_STARTED)

    @router.get("/readyz", summary="Probe: 503 while requests are not let in, or not served")
    async def ready() -> Reply:
        return _answer(watchdog, tuple(phase for phase in _SAYS if phase != "ready"))

    return router


def phase_of(looks: Sequence[ProcessLook], is_stalled: bool) -> Phase:
    """How a server is whose live processes look like this: of several API servers the best that one of them does.

    `is_stalled` says that none of them, no engine, or not their launcher makes progress.
    """
    launchers = [look.activity for look in looks if look.role.startswith(LAUNCHER)]
    phases = {_PHASES.get(look.activity, "loading") for look in looks if look.role.startswith(API_SERVER)}
    if launchers and _PHASES.get(launchers[0]) != "ready":
        return _PHASES.get(launchers[0], "loading")
    best = next((phase for phase in _BEST_FIRST if phase in phases), None)
    if best is None:
        return "restarting" if launchers else "dead"
    if best not in ("ready", "broken"):
        return best
    if not any(look.role.startswith(CORE) for look in looks):
        # The API server is about to say so; were no other engine to come, it would go itself.
        return "restarting"
    return "stalled" if is_stalled else best


def is_all_stalled(looks: Iterable[ProcessLook], stalls: Iterable[StallBegun]) -> bool:
    """Whether all engines, or all API servers, of those that live stand still: one that moves goes on serving.

    Or their launcher does: what comes now goes to nobody.
    """
    engines, servers, launchers = set[str](), set[str](), set[str]()
    for look in looks:
        if look.role.startswith(CORE):
            engines.add(engine_of_role(look.role))
        elif look.role.startswith(API_SERVER):
            servers.add(look.role)
        elif look.role.startswith(LAUNCHER):
            launchers.add(look.role)
    standing = list(stalls)
    still, silent = {stall.engine for stall in standing if stall.engine}, {stall.role for stall in standing}
    return bool(standing) and (engines <= still or servers <= silent or not launchers.isdisjoint(silent))


def _answer(watchdog: Watchdog | None, failing: Sequence[Phase]) -> Reply:
    if watchdog is None:
        raise InspectError("a recording is not alive; probes are of a server that runs", 404)
    looks = watchdog.looks()
    phase = phase_of(looks, is_all_stalled(looks, watchdog.current()))
    if phase not in failing:
        return Answer({"status": phase})
    return Answer({"status": phase, "error": {"message": _SAYS[phase], "type": phase, "code": 503}}, 503)
