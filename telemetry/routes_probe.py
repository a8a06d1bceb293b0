"""Probes of the server on the inspector's port, by what the headers of its processes say: no record is read."""

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.inspect_context import Answer, InspectContext, InspectError
from vllm_obs.telemetry.watchdog import Watchdog
from vllm_obs.telemetry.watchdog_headers import API_SERVER, CORE
from vllm_obs.telemetry.watchdog_rule import ProcessLook

PROBES = frozenset({"/livez", "/readyz", "/startupz"})
"""Answered without the drain that comes before all else."""

Phase = Literal["loading", "ready", "stalled", "broken", "restarting", "draining", "dead"]
"""How a server is, in the API server's own words."""

_SAYS: dict[Phase, str] = {
    "loading": "the model is being loaded",
    "ready": "requests are let in",
    "stalled": "the engine, or an API server, has work and makes no progress",
    "broken": "the model gave no usable probabilities several times in a row",
    "restarting": "the engine died and another is being started",
    "draining": "the server is shutting down",
    "dead": "the API server is gone",
}
_NOT_STARTED: tuple[Phase, ...] = ("loading", "dead")


def probe_router(context: InspectContext) -> APIRouter:
    """The routes, over one Observer; 404 of a recording. They answer also while the server itself hangs."""
    router = APIRouter()
    watchdog = context.watchdog

    @router.get("/livez", summary="Probe: 503 when the server is dead, and must be started again")
    async def live() -> Response:
        return _answer(watchdog, ("dead",))

    @router.get("/startupz", summary="Probe: 503 until the start is over")
    async def started() -> Response:
        return _answer(watchdog, _NOT_STARTED)

    @router.get("/readyz", summary="Probe: 503 while requests are not let in, or not served")
    async def ready() -> Response:
        return _answer(watchdog, tuple(phase for phase in _SAYS if phase != "ready"))

    return router


def phase_of(looks: Sequence[ProcessLook], is_stalled: bool) -> Phase:
    """How a server is whose live processes look like this; `is_stalled` says that one of them stands still."""
    activities = {look.activity for look in looks if look.role.startswith(API_SERVER)}
    if not activities:
        return "dead"
    if Activity.STOPPING in activities:
        return "draining"
    if Activity.RESTARTING in activities:
        return "restarting"
    if not activities <= {Activity.SERVING, Activity.BROKEN}:
        return "loading"
    if not any(look.role.startswith(CORE) for look in looks):
        # The API server is about to say so; were no other engine to come, it would go itself.
        return "restarting"
    if is_stalled:
        return "stalled"
    return "broken" if Activity.BROKEN in activities else "ready"


def _answer(watchdog: Watchdog | None, failing: Sequence[Phase]) -> Response:
    if watchdog is None:
        raise InspectError("a recording is not alive; probes are of a server that runs", 404)
    phase = phase_of(watchdog.looks(), bool(watchdog.current()))
    if phase not in failing:
        return Answer({"status": phase})
    return Answer({"status": phase, "error": {"message": _SAYS[phase], "type": phase, "code": 503}}, 503)
