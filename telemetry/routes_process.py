"""The inspector route of processes."""

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.inspect_context import Answer, InspectContext
from vllm_obs.telemetry.inspect_processes import process_rows


def process_router(context: InspectContext) -> APIRouter:
    """The routes, over one Observer."""
    router = APIRouter()
    observer = context.observer

    @router.get("/inspect/processes", summary="Every process: title, what it does now, heartbeat, CPU and memory")
    async def processes() -> Response:
        run_dir = context.config.run_dir if observer.is_live else None
        return Answer({"processes": process_rows(observer.state.processes, run_dir, observer.now())})

    return router
