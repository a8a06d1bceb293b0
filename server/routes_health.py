"""What probes ask: is it alive, has it started, is it ready for requests; and which version it is."""

from fastapi import APIRouter, Response

from vllm_obs import __version__
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.phase import Phase
from vllm_obs.server.state import ApiServer


def health_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server. None needs a key; 503 is their only error."""
    router = APIRouter(tags=["health"])

    @router.get("/health")
    @router.get("/ping")
    @router.post("/ping")
    async def health() -> Response:
        """Whether the engine is there; still 200 while the server drains, and while the engine stands still."""
        _refuse_in(api, Phase.LOADING, Phase.RESTARTING, Phase.DEAD)
        return Response()

    @router.get("/livez")
    async def live() -> Response:
        """Whether a restart is not needed: all is well but a dead engine that no other takes the place of.

        `status` says when one stands still or is being started again.
        """
        _refuse_in(api, Phase.DEAD)
        return JsonReply({"status": api.phase.value})

    @router.get("/startupz")
    async def started() -> Response:
        """Whether the start is over."""
        _refuse_in(api, Phase.LOADING, Phase.DEAD)
        return JsonReply({"status": api.phase.value})

    @router.get("/readyz")
    async def ready() -> Response:
        """Whether requests are let in: one engine is enough. Of several, `engines` says how each is."""
        _refuse_in(api, *(phase for phase in Phase if phase is not Phase.READY))
        states = api.engine_states
        return JsonReply({"status": api.phase.value, **({"engines": states} if len(states) > 1 else {})})

    @router.get("/version")
    async def version() -> Response:
        """The version of this server."""
        return JsonReply({"version": __version__})

    return router


def _refuse_in(api: ApiServer, *phases: Phase) -> None:
    if api.phase in phases:
        refusal = api.refusal()
        assert refusal is not None
        raise refusal
