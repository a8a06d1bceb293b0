"""Inspector routes of where a start's time went, and where memory is."""

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.inspect_context import Answer, InspectContext
from vllm_obs.telemetry.memory_ledger_view import memory_view
from vllm_obs.telemetry.startup import startup_view


def startup_router(context: InspectContext) -> APIRouter:
    """The routes, over one Observer."""
    router = APIRouter()
    observer = context.observer

    @router.get("/inspect/startup", summary="Where the time to ready went: phases, critical path, gaps")
    async def startup() -> Response:
        return Answer(startup_view(observer.state.processes, observer.now()))

    @router.get("/inspect/memory", summary="Where memory is, by process and part, and how much room is left")
    async def memory() -> Response:
        await context.refresh_memory()
        return Answer(memory_view(observer, context.memory))

    return router
