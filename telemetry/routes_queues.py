"""Inspector route of an engine's queues as they are now."""

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.inspect_context import Answer, InspectContext
from vllm_obs.telemetry.inspect_queues import queues_view


def queues_router(context: InspectContext) -> APIRouter:
    """The route, over one Observer."""
    router = APIRouter()
    observer = context.observer

    @router.get("/inspect/queues", summary="Who waits and why, who runs and how far it is; as it is now")
    async def queues(engine: str = "0") -> Response:
        return Answer(queues_view(observer.state, engine, observer.now()))

    return router
