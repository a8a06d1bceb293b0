"""Inspector route of an engine's queues as they are now."""

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_queues import queues_view
from vllm_obs.telemetry.inspect_reply import Answer, Reply
from vllm_obs.telemetry.inspect_router import Router


def queues_router(context: InspectContext) -> Router:
    """The route, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get("/inspect/queues", summary="Who waits and why, who runs and how far it is; as it is now")
    async def queues(engine: str = "0") -> Reply:
        return Answer(queues_view(observer.state, engine, observer.now()))

    return router
