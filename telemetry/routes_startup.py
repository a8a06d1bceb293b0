"""Inspector routes of where a start's time went, and where memory is."""

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_reply import Answer, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.memory_ledger_view import memory_view
from vllm_obs.telemetry.startup import startup_view


def startup_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get("/inspect/startup", summary="Where the time to ready went: phases, critical path, gaps")
    async def startup() -> Reply:
        return Answer(startup_view(observer.state.processes, observer.now()))

    @router.get("/inspect/memory", summary="Where memory is, by process and part, and how much room is left")
    async def memory() -> Reply:
        await context.refresh_memory()
        return Answer(memory_view(observer, context.memory))

    return router
